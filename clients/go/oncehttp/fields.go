package oncehttp

import (
	"net/http"
	"slices"
	"strings"
)

const (
	replayedHeader = "Idempotent-Replayed"
	degradedHeader = "Oncegate-Degraded"
)

// Names of fields, in lower case.
var (
	hopByHop = []string{
		"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
	}
	// neverStored belong to one caller.
	neverStored = []string{"set-cookie", "set-cookie2", "www-authenticate"}
	// own are written for each response.
	own = []string{"content-length", "date", "idempotent-replayed"}
)

// storedFields are the fields of a response that are stored and replayed.
type storedFields struct {
	with, without []string
}

func newStoredFields(with, without []string) (*storedFields, error) {
	fields := &storedFields{}
	for _, name := range with {
		lower := strings.ToLower(name)
		switch {
		case !isFieldName(name):
			return nil, wrong("StoreWith has %q, which is no field name; write one like Set-Cookie", name)
		case isNeverStorable(lower):
			return nil, wrong("StoreWith has %q, which belongs to one connection or is written for each response: leave it out", name)
		}
		fields.with = append(fields.with, lower)
	}
	for _, name := range without {
		if !isFieldName(name) {
			return nil, wrong("StoreWithout has %q, which is no field name; write one like X-Session", name)
		}
		fields.without = append(fields.without, strings.ToLower(name))
	}
	return fields, nil
}

// of returns those of the fields that are stored, in the order of their names, with names in lower case.
func (s *storedFields) of(header http.Header) [][2]string {
	var named []string
	for _, line := range header["Connection"] {
		for _, name := range strings.Split(line, ",") {
			named = append(named, strings.ToLower(strings.TrimSpace(name)))
		}
	}
	var kept [][2]string
	for name, lines := range header {
		lower := strings.ToLower(name)
		isKept := !slices.Contains(neverStored, lower) || slices.Contains(s.with, lower)
		if !isKept || isNeverStorable(lower) || slices.Contains(s.without, lower) || slices.Contains(named, lower) || !isFieldName(name) {
			continue
		}
		for _, line := range lines {
			kept = append(kept, [2]string{lower, line})
		}
	}
	slices.SortStableFunc(kept, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return kept
}

func isNeverStorable(lower string) bool {
	return slices.Contains(hopByHop, lower) || slices.Contains(own, lower) || strings.HasPrefix(lower, "proxy-") || isOwn(lower)
}

// isOwn reports if only the gateway and handlers use a field.
func isOwn(lower string) bool {
	return strings.HasPrefix(lower, "oncegate-") || strings.HasPrefix(lower, "oncegate_")
}

// isFieldName excludes what net/http uses as a mark, such as http.TrailerPrefix.
func isFieldName(name string) bool {
	const others = "!#$%&'*+-.^_`|~"
	for _, char := range []byte(name) {
		if (char < '0' || char > '9') && (char|0x20 < 'a' || char|0x20 > 'z') && strings.IndexByte(others, char) < 0 {
			return false
		}
	}
	return name != ""
}

// has reports if a field that is a list has this item.
func has(lines []string, item string) bool {
	for _, line := range lines {
		for _, each := range strings.Split(line, ",") {
			each, _, _ = strings.Cut(each, ";")
			if strings.EqualFold(strings.TrimSpace(each), item) {
				return true
			}
		}
	}
	return false
}
