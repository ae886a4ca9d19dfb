#!/usr/bin/env python3
"""Stripe's own Python client, unchanged, over connections that lose the first answers: one payment all the same.

Usage: stripe_client.py URL, with the package `stripe` installed.
"""

import sys

import stripe

client = stripe.StripeClient("sk_test_example", base_addresses={"api": sys.argv[1]}, max_network_retries=3)
payment = client.v1.payment_intents.create({"amount": 1250, "currency": "eur"})
print(payment.id, payment.amount, payment.currency)
