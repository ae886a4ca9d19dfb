package oncehttp

import "time"

// SetCallerTimeout changes the time that a caller may take, and returns the one before.
func SetCallerTimeout(to time.Duration) (before time.Duration) {
	before, callerTimeout = callerTimeout, to
	return before
}
