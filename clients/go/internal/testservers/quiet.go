package testservers

import (
	"context"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// Quiet receives events, and does nothing.
func Quiet(context.Context, oncegate.Event) {}
