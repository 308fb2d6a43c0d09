"""Long programmes that prove a promise: each prints what it covered and its verdict. docs/reliability.md."""
