"""The OpenAI-compatible HTTP gateway: a process of its own in front of the Generation API.

JSON becomes requests (fields, sampling, completion_request, chat_request), replies become JSON
(answer, choice_forms, logprob_forms, usage) and errors become OpenAI's (api_error): all of that is
pure. Around it stand the client of the mesh, one exchange, the HTTP routes and the server.
Source: https://platform.openai.com/docs/api-reference
"""
