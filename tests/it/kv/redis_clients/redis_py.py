"""redis-py with its defaults, against a store. Arguments: its address and port. Ends with 0 if all replies are right."""

import asyncio
import sys

import redis
import redis.asyncio

HOST, PORT = sys.argv[1], int(sys.argv[2])


def refused(error, text):
    assert text in str(error), f"{error!r} does not say {text!r}"


def plain():
    client = redis.Redis(host=HOST, port=PORT)
    assert client.ping()
    assert client.set("plain", "1") is True
    assert client.get("plain") == b"1"
    assert client.get("none") is None
    assert client.set("plain", "2", nx=True) is None
    assert client.set("new", "2", nx=True) is True
    assert client.exists("plain", "new", "none") == 2
    assert client.delete("plain", "new", "none") == 2
    pipeline = client.pipeline(transaction=False)
    for number in range(500):
        pipeline.set(f"key{number}", str(number)).get(f"key{number}")
    assert pipeline.execute() == [each for n in range(500) for each in (True, str(n).encode())]
    assert client.delete(*(f"key{number}" for number in range(500))) == 500
    assert client.config_get("data*") == {"databases": "1"}
    assert client.client_setname("me") and client.client_getname() == "me"
    assert client.client_id() > 0
    assert "set" in client.command()
    assert client.command_count() == len(client.command())
    assert client.info()["leads"] == 1
    assert client.echo("a\r\nb") == b"a\r\nb"
    # Transactions and expiry are refused, and nothing is executed.
    transaction = client.pipeline(transaction=True).set("kept", "1").delete("kept")
    for call, text in [
        (transaction.execute, "MULTI is not supported"),
        (lambda: client.set("kept", "1", ex=10), "keys never expire"),
        (lambda: client.incr("kept"), "unknown command 'INCRBY'"),
        (lambda: client.select(1), "DB index is out of range"),
    ]:
        try:
            call()
        except redis.ResponseError as error:
            refused(error, text)
        else:
            raise AssertionError(f"{text}: no error")
    assert client.get("kept") is None
    client.close()
    with redis.Redis(host=HOST, port=PORT, protocol=2, decode_responses=True) as resp2:
        assert resp2.set("two", "2") is True and resp2.get("two") == "2" and resp2.get("none") is None
        assert resp2.config_get("databases") == {"databases": "1"}
    with redis.Redis(host=HOST, port=PORT, username="nobody", password="x") as stranger:
        try:
            stranger.ping()
        except redis.AuthenticationError:
            pass
        else:
            raise AssertionError("a user that does not exist is accepted")


async def asynchronous():
    async with redis.asyncio.Redis(host=HOST, port=PORT) as client:
        assert await client.set("async", "1") is True
        assert await client.get("async") == b"1"
        assert await client.get("none") is None
        values = await asyncio.gather(*(client.set(f"async{n}", str(n)) for n in range(50)))
        assert values == [True] * 50
        pipeline = client.pipeline(transaction=False)
        for number in range(50):
            pipeline.get(f"async{number}")
        assert await pipeline.execute() == [str(number).encode() for number in range(50)]
        assert await client.delete("async") == 1


plain()
asyncio.run(asynchronous())
