package harness

import (
	"slices"
	"strings"
	"testing"
)

// TestBrokersDoNotMeet: two brokers with one port or one name would be one.
func TestBrokersDoNotMeet(t *testing.T) {
	seen := map[any]string{}
	for _, b := range Brokers() {
		for _, own := range []any{b.Name, b.Env, b.Image, b.Port, b.Management, b.dist, b.epmd} {
			if other, ok := seen[own]; ok {
				t.Errorf("%s and %s both have %v", other, b.Name, own)
			}
			seen[own] = b.Name
		}
		if got, err := find(b.Name); err != nil || got != b {
			t.Errorf("find(%q) = %+v, %v", b.Name, got, err)
		}
	}
	if _, err := find("rabbitmq"); err == nil {
		t.Error("find returned a broker that is not there")
	}
}

func TestEnvironment(t *testing.T) {
	for _, b := range Brokers() {
		t.Setenv(b.Env, "")
		t.Setenv(b.ManagementEnv(), "")
	}
	if Provided() {
		t.Error("Provided without any address")
	}
	first := Brokers()[0]
	want := []string{
		first.Env + "=amqp://guest:guest@127.0.0.1:25673/",
		"REDRIVE_RABBITMQ_MANAGEMENT_URL=http://guest:guest@127.0.0.1:25683/",
	}
	if got := Environment(); !slices.Equal(got[:2], want) || len(got) != 2*len(Brokers()) {
		t.Errorf("Environment() = %q, want it to begin with %q", got, want)
	}

	t.Setenv(first.Env, "amqp://mine/")
	if got := Environment()[0]; got != first.Env+"=amqp://mine/" {
		t.Errorf("an address of the user became %q", got)
	}
	if Provided() {
		t.Error("Provided with one address of several")
	}
	for _, b := range Brokers() {
		t.Setenv(b.Env, "amqp://mine/")
	}
	if !Provided() {
		t.Error("not Provided with all addresses")
	}
}

func TestNewRefusesAnUnknownEngine(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("REDRIVE_ENGINE", "podman")
	if _, err := New(t.Context(), t.Output()); err == nil || !strings.Contains(err.Error(), "REDRIVE_ENGINE=podman") {
		t.Errorf("New = %v, want an error that names REDRIVE_ENGINE=podman", err)
	}
}
