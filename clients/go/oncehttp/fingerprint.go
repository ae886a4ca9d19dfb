package oncehttp

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// methodOverrides change the method for frameworks that read them.
var methodOverrides = []string{"x-http-method-override", "x-http-method", "x-method-override"}

// fingerprintOf returns what must be equal on a repeat. The members are those of the gateway's proxy, which writes null for absent parts of
// a request.
func (m *Middleware) fingerprintOf(r *http.Request, body []byte) oncegate.Map {
	members := oncegate.Map{}
	form := multipartDigest(r.Header, body)
	path, query, hasQuery := target(r)
	for part := range m.fingerprint {
		switch part {
		case "method":
			members["method"] = r.Method
			for name, lines := range r.Header {
				if isMethodOverride(name) {
					members[strings.ToLower(name)] = digestOfLines(lines)
				}
			}
		case "path":
			members["path"] = spelled(path)
		case "query":
			members["query"] = nil
			if hasQuery {
				members["query"] = spelled(query)
			}
		case "content-type":
			// The boundary of a form may differ from try to try.
			members["content-type"] = "multipart/form-data"
			if form == "" {
				members["content-type"] = digestOfLines(inSmallLetters(r.Header["Content-Type"]))
			}
		case "if-match":
			members["if-match"] = digestOfLines(r.Header["If-Match"])
		case "body", "body:json":
			members["body"] = form
			if form == "" && part == "body" {
				members["body"] = digest(body)
			} else if form == "" {
				members["body"] = digestOfJSON(body)
			}
		}
	}
	return members
}

func isMethodOverride(name string) bool {
	return slices.Contains(methodOverrides, strings.ReplaceAll(strings.ToLower(name), "_", "-"))
}

// overridesMethod reports if a framework may take the request for one of another method.
func overridesMethod(header http.Header) bool {
	for name := range header {
		if isMethodOverride(name) {
			return true
		}
	}
	return false
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

// spelled returns a path or a query with one spelling of its escapes (RFC 3986, 6.2.2): those of unreserved characters are decoded, the others have
// capitals.
func spelled(text string) string {
	var out strings.Builder
	for at := 0; at < len(text); at++ {
		if text[at] != '%' || at+2 >= len(text) || !isHex(text[at+1]) || !isHex(text[at+2]) {
			out.WriteByte(text[at])
			continue
		}
		escape := strings.ToUpper(text[at : at+3])
		at += 2
		char, _ := strconv.ParseUint(escape[1:], 16, 8)
		if isUnreserved(byte(char)) {
			out.WriteByte(byte(char))
		} else {
			out.WriteString(escape)
		}
	}
	return out.String()
}

func isHex(char byte) bool {
	return char >= '0' && char <= '9' || char|0x20 >= 'a' && char|0x20 <= 'f'
}

func isUnreserved(char byte) bool {
	return char >= '0' && char <= '9' || char|0x20 >= 'a' && char|0x20 <= 'z' || strings.IndexByte("-._~", char) >= 0
}

// inSmallLetters returns lines with small letters for A to Z, and no others.
func inSmallLetters(lines []string) []string {
	small := make([]string, len(lines))
	for at, line := range lines {
		bytes := []byte(line)
		for position, char := range bytes {
			if char >= 'A' && char <= 'Z' {
				bytes[position] = char | 0x20
			}
		}
		small[at] = string(bytes)
	}
	return small
}

func digest(bytes []byte) string {
	sum := sha256.Sum256(bytes)
	return hex.EncodeToString(sum[:])
}

// digestOfLines returns the digest of a field's lines, in order, or nil: they may be longer than a fingerprint.
func digestOfLines(lines []string) any {
	if len(lines) == 0 {
		return nil
	}
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

// multipartDigest returns the digest of the parts of a form (multipart/form-data, RFC 7578) without its boundary, since each try has another. It is
// empty if the body is no form, or one that readers could understand differently.
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
		end := bytes.Index(rest, delimiter)
		if end < 0 {
			return ""
		}
		// No line end is that of two delimiters: some readers see an empty part between them.
		part, ok := bytes.CutPrefix(rest[:end], []byte("\r\n"))
		if !ok {
			return ""
		}
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		hash.Write(length[:])
		hash.Write(part)
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
		name = strings.ToLower(strings.TrimSpace(name))
		if !ok || !strings.HasPrefix(name, "boundary") {
			continue
		}
		// boundary* and boundary*0 (RFC 2231) are boundaries to some readers. At most 70 characters (RFC 2046, 5.1.1). Some readers end the type at
		// a comma.
		value = strings.Trim(strings.TrimSpace(value), `"`)
		if name != "boundary" || found != "" || value == "" || len(value) > 70 || strings.Contains(value, ",") {
			return ""
		}
		found = value
	}
	return found
}
