package oncehttp

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// methodOverrides change the method for frameworks that read them.
var methodOverrides = []string{"x-http-method-override", "x-http-method", "x-method-override"}

// fingerprintOf returns what must be equal on a repeat. The members are those of the gateway's proxy.
func (m *Middleware) fingerprintOf(r *http.Request, body []byte) oncegate.Map {
	members := oncegate.Map{}
	form := multipartDigest(r.Header, body)
	path, query, hasQuery := target(r)
	if m.fingerprint["method"] {
		members["method"] = r.Method
		for name, lines := range r.Header {
			lower := strings.ToLower(name)
			for _, override := range methodOverrides {
				if strings.ReplaceAll(lower, "_", "-") == override {
					members[lower] = digestOfLines(lines)
				}
			}
		}
	}
	if m.fingerprint["path"] {
		members["path"] = path
	}
	if m.fingerprint["query"] && hasQuery {
		members["query"] = query
	}
	if m.fingerprint["content-type"] {
		if form != "" {
			// The boundary of a form may differ from try to try.
			members["content-type"] = "multipart/form-data"
		} else if lines := r.Header["Content-Type"]; len(lines) > 0 {
			members["content-type"] = digestOfLines(lines)
		}
	}
	if lines := r.Header["If-Match"]; m.fingerprint["if-match"] && len(lines) > 0 {
		members["if-match"] = digestOfLines(lines)
	}
	switch {
	case form != "" && (m.fingerprint["body"] || m.fingerprint["body:json"]):
		members["body"] = form
	case m.fingerprint["body:json"]:
		members["body"] = digestOfJSON(body)
	case m.fingerprint["body"]:
		members["body"] = digest(body)
	}
	return members
}

// target returns path and query as they were sent: routers and http.StripPrefix change r.URL.
func target(r *http.Request) (path, query string, hasQuery bool) {
	if strings.HasPrefix(r.RequestURI, "/") {
		return strings.Cut(r.RequestURI, "?")
	}
	parsed := r.URL
	if absolute, err := url.Parse(r.RequestURI); err == nil && absolute.Host != "" {
		parsed = absolute
	}
	return cmp.Or(parsed.EscapedPath(), "/"), parsed.RawQuery, parsed.ForceQuery || parsed.RawQuery != ""
}

func digest(bytes []byte) string {
	sum := sha256.Sum256(bytes)
	return hex.EncodeToString(sum[:])
}

// digestOfLines returns the digest of a field's lines, in order: they may be longer than a fingerprint.
func digestOfLines(lines []string) string {
	hash := sha256.New()
	for _, line := range lines {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(line)))
		hash.Write(length[:])
		hash.Write([]byte(line))
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// digestOfJSON returns the digest of the value of a body; that of its bytes if it is not JSON, or JSON that readers understand differently.
func digestOfJSON(body []byte) string {
	text, err := oncegate.CanonicalJSON(string(body))
	if err != nil {
		return digest(body)
	}
	return digest([]byte(text))
}

// multipartDigest returns the digest of the parts of a form (multipart/form-data, RFC 7578) without its boundary, which clients choose anew for each try. It
// is empty if the body is no form, or one that readers could understand differently.
func multipartDigest(header http.Header, body []byte) string {
	lines := header["Content-Type"]
	if len(lines) != 1 {
		return ""
	}
	boundary := boundaryOf(lines[0])
	if boundary == "" {
		return ""
	}
	delimiter := []byte("\r\n--" + boundary)
	rest, ok := bytes.CutPrefix(body, delimiter[2:])
	if !ok {
		return ""
	}
	hash := sha256.New()
	for {
		if end, last := bytes.CutPrefix(rest, []byte("--")); last {
			if len(end) > 0 && string(end) != "\r\n" {
				return ""
			}
			return hex.EncodeToString(hash.Sum(nil))
		}
		if rest, ok = bytes.CutPrefix(rest, []byte("\r\n")); !ok {
			return ""
		}
		end := bytes.Index(rest, delimiter)
		if end < 0 {
			return ""
		}
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(end))
		hash.Write(length[:])
		hash.Write(rest[:end])
		rest = rest[end+len(delimiter):]
	}
}

func boundaryOf(contentType string) string {
	parameters := strings.Split(contentType, ";")
	if !strings.EqualFold(strings.TrimSpace(parameters[0]), "multipart/form-data") {
		return ""
	}
	found := ""
	for _, parameter := range parameters[1:] {
		name, value, ok := strings.Cut(parameter, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(name), "boundary") {
			continue
		}
		// At most 70 characters (RFC 2046, 5.1.1).
		value = strings.Trim(strings.TrimSpace(value), `"`)
		if found != "" || value == "" || len(value) > 70 {
			return ""
		}
		found = value
	}
	return found
}
