"""The load client: streams requests to an OpenAI-compatible server and times every token."""
