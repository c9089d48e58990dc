"""Coroutines from synchronous code."""

import asyncio
import threading

__all__ = ["get_async_loop", "run", "eager_create_task"]


class AsyncLoopThread:
    """An event loop on a thread of its own."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, coro):
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result()


_loop = None


def get_async_loop():
    global _loop
    if _loop is None:
        _loop = AsyncLoopThread()
    return _loop


def run(coro):
    """Runs a coroutine to its end, from a function that is not one."""
    return get_async_loop().run(coro)


async def eager_create_task(coro):
    task = asyncio.create_task(coro)
    await asyncio.sleep(0)
    return task
