// Stripe's own Node client, unchanged, over connections that lose the first answers: one payment all the same.
//
// Usage: node stripe_client.mjs URL, with the package `stripe` installed.

import Stripe from "stripe";

const url = new URL(process.argv[2]);
const stripe = new Stripe("sk_test_example", { host: url.hostname, port: url.port, protocol: "http", maxNetworkRetries: 3, telemetry: false });
const payment = await stripe.paymentIntents.create({ amount: 1250, currency: "eur" });
console.log(payment.id, payment.amount, payment.currency);
