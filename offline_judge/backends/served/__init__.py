"""A judge behind an OpenAI-compatible server: vLLM first, and any other that holds to a JSON schema.

addresses.py     http://127.0.0.1:8000/v1, one or several
self_check.py    what a server really does, found out with a few tiny asks
dialects.py      calls to HTTP requests and back: token ids for vLLM, chat messages for the others
dispatch.py      many requests in flight: back-pressure, time limits, retries, dead servers
served_judge.py  the judge made of these
vllm_server.py   a vLLM server as a child process
"""
