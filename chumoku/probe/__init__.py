"""Looking inside: pictures of what a model computed."""
