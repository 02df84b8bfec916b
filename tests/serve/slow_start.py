"""An application that does not start while the file named by ``WAIT_WHILE`` exists."""

import os
import time
from pathlib import Path


def app():
    while Path(os.environ["WAIT_WHILE"]).exists():
        time.sleep(0.05)
    return answer


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
