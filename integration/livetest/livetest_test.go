package livetest

import (
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	for _, tt := range []struct {
		name                string
		env                 map[string]string
		address, skip, fail string // parts of what is to come back
	}{
		{name: "an address", env: map[string]string{"A_URL": "amqp://a"}, address: "amqp://a"},
		{name: "an address in CI", env: map[string]string{"A_URL": "amqp://a", "CI": "true"}, address: "amqp://a"},
		{name: "none", skip: "A_URL is not set"},
		{name: "none in CI", env: map[string]string{"CI": "true"}, fail: "with CI=true this is a failure"},
		{name: "none where CI means something else", env: map[string]string{"CI": "1"}, skip: "make up"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address, skip, err := lookup(func(key string) string { return tt.env[key] }, "A_URL")
			if address != tt.address {
				t.Errorf("address %q, want %q", address, tt.address)
			}
			if !strings.Contains(skip, tt.skip) || (skip == "") != (tt.skip == "") {
				t.Errorf("skipped with %q, want %q", skip, tt.skip)
			}
			if (err == nil) != (tt.fail == "") || err != nil && !strings.Contains(err.Error(), tt.fail) {
				t.Errorf("failed with %v, want %q", err, tt.fail)
			}
		})
	}
}
