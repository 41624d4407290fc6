"""Log lines leave through a thread of their own, so that nobody who fails to read them, and no full
disk, can stop the server. What does not fit into the queue meanwhile is dropped and counted.
"""

import logging
import os
import queue
import threading
import time

MAX_LINES = 4096
FLUSH_SECONDS = 0.5


class LineWriter(logging.Handler):
    """Writes to a file descriptor, never through a stream: a blocked stream would be locked."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes] = queue.Queue(MAX_LINES)
        self._n_dropped = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait((self.format(record) + "\n").encode(errors="replace"))
        except queue.Full:
            self._n_dropped += 1

    def flush(self) -> None:
        """Wait for the queue to empty, but not for ever."""
        end = time.monotonic() + FLUSH_SECONDS
        while self._lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.001)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            self._write(line)
            if self._n_dropped:
                dropped, self._n_dropped = self._n_dropped, 0
                self._write(f"{dropped} lines of the log were dropped\n".encode())
            self._lines.task_done()

    def _write(self, line: bytes) -> None:
        """All of it; a disk that is full or a pipe without reader drops the line."""
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            self._n_dropped += 1
