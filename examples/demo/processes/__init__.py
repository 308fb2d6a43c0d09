"""The processes that the demo starts and kills: each is what an application would write."""
