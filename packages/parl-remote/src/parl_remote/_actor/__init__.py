"""The process of one actor: its loop, the execution of calls, and the tracking of its holders."""
