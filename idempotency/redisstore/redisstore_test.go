package redisstore_test

import (
	"strings"
	"testing"

	"github.com/redrive-go/redrive/idempotency/redisstore"
)

// What a store does on a server is tested in lab/fakes.

func TestNewRefuses(t *testing.T) {
	if _, err := redisstore.New(nil, ""); err == nil || !strings.Contains(err.Error(), "client is nil") {
		t.Errorf("New without a client: %v", err)
	}
}
