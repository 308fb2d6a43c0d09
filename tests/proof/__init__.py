"""Long programmes that prove a promise: each prints what it covered and its verdict. docs/reliability.md."""

from proof import calls as calls  # processes that a programme begins tell what they called
