"""Two calls of a Celery task for one payout, one payment. README.md says how to start it."""

import os
import subprocess
import sys
import uuid

from celery import Celery

from oncegate import Client
from oncegate.contrib.celery import OnceTask

app = Celery("payouts", broker=os.environ.get("BROKER_URL", "amqp://guest:guest@127.0.0.1:5672/"), backend="rpc://")
app.conf.worker_redirect_stdouts = False
# A retry is another message: the broker must have it before the first one is acknowledged.
app.conf.broker_transport_options = {"confirm_publish": True}
client = Client(
    [os.environ.get("ONCEGATE_URL", "http://127.0.0.1:8080")],
    os.environ.get("ONCEGATE_CREDENTIAL"),
    settle_within=None,  # A report is repeated until a gateway accepts it; the task waits.
)


# The contents say what makes two calls the same payout: never the ID of the task.
@app.task(name="payout.send", base=OnceTask, client=client, operation="payout.send", contents=lambda payout: {"payout_id": payout}, lease="30s")
def pay(payout):
    print("paid", flush=True)


if __name__ == "__main__":
    payout = uuid.uuid4().hex
    worker = ["-m", "celery", "--workdir", os.path.dirname(os.path.abspath(__file__)), "--app", "celery_task", "--quiet", "worker"]
    with subprocess.Popen([sys.executable, *worker, "--pool=solo", "--without-mingle", "--loglevel=CRITICAL"]) as process:
        calls = [pay.delay(payout) for _ in range(2)]
        for call in calls:
            call.get(timeout=30)
        process.terminate()
    print("handled", len(calls), "messages")
