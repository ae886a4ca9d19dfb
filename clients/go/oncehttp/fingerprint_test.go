package oncehttp

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncegatetest"
)

func TestFingerprintsAreThoseOfTheProxy(t *testing.T) {
	text, err := os.ReadFile("../../../tests/vectors/fingerprint.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name, Method, URL, Body, Fingerprint string
		Headers                              [][2]string
		Parts                                []string
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatal(err)
	}
	for _, vector := range vectors {
		m, err := New(Config{Client: oncegatetest.New(t).Client(), Operation: "parcel.ship", SharedKeys: true, Fingerprint: vector.Parts})
		if err != nil {
			t.Fatal(err)
		}
		head := vector.Method + " " + vector.URL + " HTTP/1.1\r\nHost: shop\r\n"
		for _, field := range vector.Headers {
			head += field[0] + ": " + field[1] + "\r\n"
		}
		request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head + "\r\n")))
		if err != nil {
			t.Fatal(vector.Name, err)
		}
		got, err := oncegate.Canonical(m.fingerprintOf(request, []byte(vector.Body)))
		if err != nil || got != vector.Fingerprint {
			t.Errorf("%s: %s, not %s; %v", vector.Name, got, vector.Fingerprint, err)
		}
	}
	for sent, wanted := range map[string]string{"/a%": "/a%", "/a%2": "/a%2", "/a%zz%41": "/a%zzA", "/%c3%A9%2f%7E": "/%C3%A9%2F~", "%41": "A"} {
		if got := spelled(sent); got != wanted {
			t.Errorf("%s: %s, not %s", sent, got, wanted)
		}
	}
}
