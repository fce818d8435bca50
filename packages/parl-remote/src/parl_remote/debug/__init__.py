"""Actors within the calling process, for breakpoints: `connect(debug=True)`."""
