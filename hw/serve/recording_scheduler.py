"""vLLM's asynchronous scheduler, recording: what `--scheduler-cls` is given. Only an engine's process can import it."""

from __future__ import annotations

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from hw.serve.recording import recording

Recording = recording(AsyncScheduler)
