// Package livetest gives tests the real brokers to run on.
//
// A test that asks for a broker runs on it, or is skipped with the reason. It
// is never skipped where the environment has CI=true: there a missing broker
// is a failure, so that a green run has met the real ones.
//
// Tests run on the newest broker of a product. With REDRIVE_NIGHTLY=true, as in
// make nightly, they run on every one, and those run that take long.
package livetest

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/redrive-go/redrive/integration/harness"
)

// Target is a broker that a test runs on.
type Target struct {
	harness.Broker        // its Name is the one that the harness stops and starts it by
	URL            string // from the environment: AMQP with user and password, host:port of a Kafka, the endpoint of an SQS, or the URL of a Redis or Valkey
	ManagementURL  string // likewise; may be empty
}

// nightly is the variable that, with the value true, lets everything run.
const nightly = "REDRIVE_NIGHTLY"

// IsNightly reports whether everything is to run.
func IsNightly() bool { return os.Getenv(nightly) == "true" }

// Nightly skips what takes too long for every commit, unless this is make
// nightly.
func Nightly(tb testing.TB) {
	tb.Helper()
	if !IsNightly() {
		tb.Skip("make nightly runs this, with " + nightly + "=true")
	}
}

// Main runs the tests of a package of which most wait for a broker: so
// many at a time that are parallel, unless the -parallel flag says otherwise.
// It returns the exit status.
func Main(m *testing.M, parallel int) int {
	const name = "test.parallel"
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		if err := flag.Set(name, strconv.Itoa(parallel)); err != nil {
			panic(err) // there is no such flag in this version of Go
		}
	}
	return m.Run()
}

// RabbitMQ runs a test on RabbitMQ, in a subtest of the broker's name.
func RabbitMQ(t *testing.T, test func(t *testing.T, target Target)) {
	t.Helper()
	onEvery(t, harness.RabbitMQ, test)
}

// Kafka runs a test on Kafka, in a subtest of the broker's name.
func Kafka(t *testing.T, test func(t *testing.T, target Target)) {
	t.Helper()
	onEvery(t, harness.Kafka, test)
}

// SQS runs a test on a server of Amazon SQS's protocol, in a subtest of the
// broker's name. Any credentials will do there.
func SQS(t *testing.T, test func(t *testing.T, target Target)) {
	t.Helper()
	onEvery(t, harness.SQS, test)
}

// Redis runs a test on Redis, and with REDRIVE_NIGHTLY=true on Valkey too, in a
// subtest of the server's name. All tests use the same database: name keys after
// the test, and let them expire.
func Redis(t *testing.T, test func(t *testing.T, target Target)) {
	t.Helper()
	onEvery(t, harness.Redis, test)
	onEvery(t, harness.Valkey, test)
}

func onEvery(t *testing.T, product harness.Product, test func(t *testing.T, target Target)) {
	t.Helper()
	for _, b := range harness.Brokers() {
		if b.Product != product {
			continue
		}
		t.Run(b.Name, func(t *testing.T) {
			t.Helper()
			if b.Nightly {
				Nightly(t)
			}
			target := Target{Broker: b, URL: Address(t, b.Env)}
			if key := b.ManagementEnv(); key != "" {
				target.ManagementURL = os.Getenv(key)
			}
			test(t, target)
		})
	}
}

// Address returns the address in an environment variable. Without one the test
// ends here: it is skipped, or fails where CI=true.
func Address(tb testing.TB, variable string) string {
	tb.Helper()
	address, skip, err := lookup(os.Getenv, variable)
	if err != nil {
		tb.Fatal(err)
	}
	if skip != "" {
		tb.Skip(skip)
	}
	return address
}

// lookup returns exactly one of its three results.
func lookup(getenv func(string) string, variable string) (address, skip string, err error) {
	if address = getenv(variable); address != "" {
		return address, "", nil
	}
	skip = variable + " is not set, so there is no broker to run on: make test starts one, or make up prints the address"
	if getenv("CI") == "true" {
		return "", "", fmt.Errorf("%s; with CI=true this is a failure, not a skip", skip)
	}
	return "", skip, nil
}
