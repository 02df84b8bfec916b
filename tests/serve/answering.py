"""Send one message to a recipient with a large answer. Print the growth of memory in MB.

Arguments: ``stream`` for the relay's sender or ``read`` for a client that reads answers, and the size of the
decompressed answer in MB.
"""

import asyncio
import re
import sys
import zlib
from pathlib import Path

import httpx

from dphmm.serve.config import Recipient
from dphmm.serve.delivery import HttpSender
from dphmm.serve.outgoing_messages import Message

ROW = {"released": True, "time": "2024-03-07T09:00:00Z"}


def make_answer(megabytes: int) -> bytes:
    """Return an answer of zeros, compressed a thousandfold."""
    encoder = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = encoder.compress(b"\0" * (1 << 20)) + encoder.flush(zlib.Z_FULL_FLUSH)
    block = encoder.compress(b"\0" * (1 << 20)) + encoder.flush(zlib.Z_FULL_FLUSH)
    body = start + block * (megabytes - 1)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def get_peak_memory_kb() -> int:
    """Return the peak memory of this program. ``ru_maxrss`` would include the parent's."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line)


async def main(mode: str, megabytes: int) -> None:
    """Send a message and print the growth."""
    answer = make_answer(megabytes)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/in"
    async with httpx.AsyncClient() as client:
        before = get_peak_memory_kb()
        if mode == "read":
            await client.post(url, json=ROW)
        else:
            message = Message("ann", 0, "", 0.0, 0.0, 1.0, ROW)
            await HttpSender(Recipient(name="family", kind="webhook", url=url), client).send(message)
        print((get_peak_memory_kb() - before) // 1024)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
