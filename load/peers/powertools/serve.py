"""Serves moto's DynamoDB on a port, and decides about one request at a time.

`moto_server` decides in several threads. Between the look of one at an item and its change another one may come, so it grants twice.
"""

import sys
import threading

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

application = DomainDispatcherApplication(create_backend_app)
one_at_a_time = threading.Lock()


def serve(environ, start_response):
    with one_at_a_time:
        return application(environ, start_response)


class Handler(WSGIRequestHandler):
    # Connections stay open.
    protocol_version = "HTTP/1.1"

    def log(self, type, message, *args):
        pass


run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True, request_handler=Handler)
