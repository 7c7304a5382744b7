"""The server: models behind HTTP, for the page and for every OpenAI client.

loop      one thread that listens, checks and answers, and never computes
readers   a few threads that turn texts into tokens
workers   one thread for each model: its batch, and what is asked between two steps; they take turns
"""
