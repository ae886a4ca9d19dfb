#!/usr/bin/env python3
"""A small order API that knows nothing of idempotency, and misbehaves on request.

    POST /v1/orders              stores an order: 201 with its number
    GET  /v1/orders              all orders: the side effects, counted where they happen
    POST /v1/payment_intents     stores a payment, and answers as Stripe's API does
    GET  /                       a page with a button for double clicks
    POST /release                ends `hold`, below

The field `X-Misbehave` of a POST chooses what goes wrong:

    slow=SECONDS   answers late
    hold           stores the order, and answers after `POST /release`
    lose-answer    stores the order, then closes the connection without an answer
    tear           stores the order, then sends half of the answer
    error          stores the order, then answers 500
    refuse         stores nothing, and answers 503 with `Oncegate-Outcome: failure`
    nonsense       stores the order, then answers with something that is not HTTP

Usage: shop.py [PORT], 9000 by default, on 127.0.0.1. It needs nothing but Python.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

BODY_MAX = 64 * 1024


class Shop(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    orders: list[dict] = []
    payments: list[dict] = []
    released = threading.Event()

    def do_GET(self):
        if self.path == "/":
            self.answer(200, Path(__file__).with_name("page.html").read_bytes(), "text/html; charset=utf-8")
        elif self.path == "/v1/orders":
            self.answer_json(200, {"orders": self.orders})
        elif self.path == "/v1/payment_intents":
            self.answer_json(200, {"object": "list", "data": self.payments})
        else:
            self.answer_json(404, {"error": "no such path"})

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > BODY_MAX:
            self.close_connection = True
            self.answer_json(413, {"error": f"at most {BODY_MAX} bytes"})
            return
        body = self.rfile.read(length)
        if self.path == "/release":
            self.released.set()
            self.answer_json(200, {})
            return
        misbehaviour, _, argument = self.headers.get("X-Misbehave", "").partition("=")
        if misbehaviour == "refuse":
            self.answer_json(503, {"error": "closed"}, {"Oncegate-Outcome": "failure"})
            return
        if self.path == "/v1/orders":
            status, created = 201, self.order(body)
        elif self.path == "/v1/payment_intents":
            status, created = 200, self.payment(body)
        else:
            self.answer_json(404, {"error": "no such path"})
            return
        if created is None:
            self.answer_json(400, {"error": "the body is not JSON"})
        elif misbehaviour == "lose-answer":
            self.close_connection = True
        elif misbehaviour == "nonsense":
            self.wfile.write(b"it is done\r\n\r\n")
            self.close_connection = True
        elif misbehaviour == "tear":
            text = json.dumps(created).encode()
            self.head(status, len(text), "application/json", {})
            self.wfile.write(text[: len(text) // 2])
            self.close_connection = True
        elif misbehaviour == "error":
            self.answer_json(500, {"error": "the order is stored, but this server does not know it"})
        else:
            if misbehaviour == "slow":
                time.sleep(min(float(argument or 1), 30))
            elif misbehaviour == "hold":
                self.released.wait(30)
            self.answer_json(status, created, {"Location": f"{self.path}/{created['id']}"})

    def order(self, body):
        try:
            contents = json.loads(body)
        except ValueError:
            return None
        with self.lock:
            order = {"id": len(self.orders) + 1, "contents": contents}
            self.orders.append(order)
        return order

    def payment(self, body):
        fields = {name: values[-1] for name, values in parse_qs(body.decode(errors="replace")).items()}
        with self.lock:
            payment = {
                "id": f"pi_{len(self.payments) + 1:06}",
                "object": "payment_intent",
                "amount": int(fields.get("amount", 0)),
                "currency": fields.get("currency", "eur"),
                "status": "requires_confirmation",
            }
            self.payments.append(payment)
        return payment

    def answer_json(self, status, value, fields=None):
        self.answer(status, json.dumps(value).encode() + b"\n", "application/json", fields or {})

    def answer(self, status, body, content_type, fields=None):
        self.head(status, len(body), content_type, fields or {})
        self.wfile.write(body)

    def head(self, status, length, content_type, fields):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format, *args):
        pass


def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    server = ThreadingHTTPServer(("127.0.0.1", port), Shop)
    print(f"shop: http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
