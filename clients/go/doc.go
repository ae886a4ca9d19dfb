// Package oncegate is a client of the idempotency gateway Oncegate.
//
//	client, err := oncegate.New([]string{"http://10.0.0.5:8080", "http://10.0.0.6:8080"}, oncegate.WithCredential(credential))
//	result, err := client.Once(ctx, "order.submit", oncegate.Map{"order_id": "A-1001"},
//		func(ctx context.Context, grant *oncegate.Grant) (any, error) { return place(ctx, order, grant.Fence) })
//
// Once claims the operation, renews the claim while the work runs, and reports the outcome. A duplicate is a result, not an error.
package oncegate
