"""Workers of a sweep on Dask: a cluster of this machine, or one that is there already."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from sim.errors import SimctlError
from sim.extras import install_hint
from sim.signals import deaf_to_ctrl_c
from sim.sweeps.executor import WorkerPool

CONNECT_S = 10.0
TLS = (
    "Dask's configuration names no certificates that there are: set ca-file, client.cert and client.key of distributed.comm.tls in its "
    "file, or DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__CLIENT__CERT and ...__CLIENT__KEY"
)
WINDOW = 4096  # cells that the scheduler holds: enough for 1,000 workers, few enough to start soon


@contextlib.contextmanager
def dask_pool(address: str, workers: int) -> Iterator[WorkerPool]:
    """A pool on the scheduler at `address`, or for `local` on one of this machine with `workers` processes of one thread.

    Raises SimctlError where Dask is not installed or no scheduler answers.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
        from distributed.scheduler import KilledWorker
    except ImportError:
        raise SimctlError(f"a scheduler needs Dask: {install_hint('sweep')}") from None
    for name in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # of a lost worker or scheduler they would say much
    with contextlib.ExitStack() as stack:
        if address == "local":
            scratch = stack.enter_context(TemporaryDirectory(prefix="simctl-dask-", ignore_cleanup_errors=True))
            stack.enter_context(dask.config.set({"temporary-directory": scratch}))
            with deaf_to_ctrl_c():
                cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL)
            where = stack.enter_context(cluster)
        else:
            where = address
            if address.startswith("tls://") and not _has_certificates():  # a client without them takes 20 s to go
                raise SimctlError(f"{address}: {TLS}")
        try:
            client = stack.enter_context(Client(where, timeout=CONNECT_S, set_as_default=False))
        except (OSError, ValueError) as error:  # a timeout is an OSError
            raise SimctlError(f"{address}: no scheduler answers ({type(error).__name__})") from None
        yield WorkerPool(
            client.get_executor(pure=False),
            WINDOW,
            (KilledWorker,),
            lambda: len(client.scheduler_info(n_workers=-1)["workers"]),
            lambda every: client.scatter(every, broadcast=True, hash=False),
        )


def _has_certificates() -> bool:
    """Whether Dask's configuration names files that a client's context for TLS is made of."""
    from distributed import Security

    try:
        return Security().get_connection_args("client")["ssl_context"] is not None
    except OSError:
        return False
