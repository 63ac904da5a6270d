"""Entry point of vLLM's general plugins: registers block-sparse decode as its attention backend `CUSTOM`.

    vllm serve MODEL --attention-backend CUSTOM --additional-config '{"sparse_decode": {"k": 32, "sink": 1, "window": 2}}'

Installed with the extra `serve`. Nothing changes for a server that does not choose the backend.
"""

from __future__ import annotations

BACKEND = "kernels.vllm_backend.SparseDecodeBackend"


def register() -> None:
    """Tell vLLM where the backend is; imports it only when a server chooses it. May be called any number of times."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        raise ImportError(f"block-sparse decode needs vLLM ({error}): pip install 'llm-simctl[serve]'") from None
    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
