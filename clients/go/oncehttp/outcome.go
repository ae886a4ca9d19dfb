package oncehttp

import (
	"slices"
	"strconv"
	"strings"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// OutcomeHeader may be set by the handler to decide itself: success, failure (nothing happened) or unknown. It is not sent on.
const OutcomeHeader = "Oncegate-Outcome"

var (
	defaultStore   = []string{"2xx", "301", "302", "303", "4xx"}
	defaultRelease = []string{"307", "308", "401", "403", "405", "407", "408", "413", "421", "425", "429"}
)

// statusRules say what a status means for the claim.
type statusRules struct {
	store, release []string
	on5xx          string
}

var meanings = map[string]string{"": oncegate.Unknown, "unknown": oncegate.Unknown, "store": oncegate.Success, "release": oncegate.Failure}

func newStatusRules(store, release []string, on5xx string) (*statusRules, error) {
	// Copies: what the service changes later was not checked.
	rules := &statusRules{store: slices.Clone(store), release: slices.Clone(release)}
	var ok bool
	if rules.on5xx, ok = meanings[on5xx]; !ok {
		return nil, wrong("On5xx is %q: write unknown, store or release", on5xx)
	}
	for name, list := range map[string][]string{"Store": store, "Release": release} {
		for _, rule := range list {
			if !isStatusRule(rule) {
				return nil, wrong("%s has %q: write a status such as 404, or a class such as 2xx", name, rule)
			}
		}
	}
	for _, rule := range store {
		if slices.Contains(release, rule) {
			return nil, wrong("Store and Release have %s: leave it out of one", rule)
		}
	}
	if store == nil {
		rules.store = defaultStore
	}
	if release == nil {
		// A status in Store leaves the default of Release, which goes first otherwise.
		rules.release = slices.DeleteFunc(slices.Clone(defaultRelease), func(rule string) bool { return slices.Contains(store, rule) })
	}
	return rules, nil
}

func isStatusRule(rule string) bool {
	if class, ok := strings.CutSuffix(rule, "xx"); ok {
		return len(class) == 1 && class >= "2" && class <= "5"
	}
	status, err := strconv.Atoi(rule)
	return err == nil && len(rule) == 3 && status >= 200 && status <= 599
}

// outcomeOf returns the outcome of a complete response. An exact status goes before a class.
func (s *statusRules) outcomeOf(status int) string {
	exact := strconv.Itoa(status)
	for _, rule := range []string{exact, exact[:1] + "xx"} {
		if slices.Contains(s.release, rule) {
			return oncegate.Failure
		}
		if slices.Contains(s.store, rule) {
			return oncegate.Success
		}
	}
	if status >= 500 && status <= 599 {
		return s.on5xx
	}
	return oncegate.Unknown
}

func isOutcome(text string) bool {
	return text == oncegate.Success || text == oncegate.Failure || text == oncegate.Unknown
}
