"""The decision of Powertools for AWS Lambda, on a stand-in for DynamoDB. See ../README.md."""

import os
import sys
import threading
import time
import uuid

import boto3
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
from botocore.config import Config

SAMPLE = 200
CONTESTS = 20
TABLE = "claims"
RUN = uuid.uuid4().hex[:8]


def create_table(database):
    database.create_table(
        TableName=TABLE,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def main():
    callers, warm_up, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    # The stand-in asks for no real credential.
    session = boto3.session.Session("stand-in", "stand-in", region_name="eu-west-1")
    url, config = os.environ["DYNAMODB_URL"], Config(max_pool_connections=callers)
    create_table(session.client("dynamodb", endpoint_url=url, config=config))
    ran = threading.local()
    store = DynamoDBPersistenceLayer(
        table_name=TABLE, boto3_client=session.client("dynamodb", endpoint_url=url, config=config)
    )

    @idempotent_function(
        data_keyword_argument="order",
        persistence_store=store,
        config=IdempotencyConfig(expires_after_seconds=300),
    )
    def work(order):
        ran.it = True

    def claim(order):
        ran.it = False
        try:
            work(order={"order": f"{RUN}-{order}"})
        except IdempotencyAlreadyInProgressError:
            pass
        return ran.it

    begins = time.monotonic() + warm_up
    ends = begins + seconds
    lock = threading.Lock()
    counts = {"next": 0, True: 0, False: 0}

    def call():
        while (now := time.monotonic()) < ends:
            with lock:
                order, counts["next"] = counts["next"], counts["next"] + 1
            granted = claim(order)
            if now >= begins:
                with lock:
                    counts[granted] += 1

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    time.sleep(max(begins - time.monotonic(), 0))
    print("begin", flush=True)
    for thread in threads:
        thread.join()
    print("end", counts[True], counts[False], flush=True)
    again = [claim(order) for order in range(0, counts["next"], max(counts["next"] // SAMPLE, 1))]
    # The stand-in must decide once for callers that ask at the same time, too.
    for contest in range(CONTESTS):
        winners = []
        threads = [threading.Thread(target=lambda: winners.append(claim(f"contest-{contest}"))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        again.append(sum(winners) - 1)
    print("repeated", len(again), sum(again), flush=True)
    sys.stdin.read()


main()
