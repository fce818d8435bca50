"""The process of one actor: its loop, how calls run in it, and who needs it."""
