"""The HTTP server: the web page and an OpenAI-compatible API.

event loop   one thread that reads, checks and answers requests; it never runs a model
readers      a few threads that tokenize texts
workers      one thread per model that runs its batch of texts and, between two steps, other jobs
"""
