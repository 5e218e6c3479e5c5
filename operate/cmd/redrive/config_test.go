package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/internal/goldentest"
	"github.com/redrive-go/redrive/operate/config"
)

// secret is what no command may print, and no file of testdata may have in it.
const secret = "correct horse battery staple"

func setSecrets(t *testing.T) {
	t.Helper()
	t.Setenv("RABBITMQ_PASSWORD", secret)
	t.Setenv("KAFKA_PASSWORD", secret)
}

// TestConfigGolden holds what the commands print: their JSON is a promise.
func TestConfigGolden(t *testing.T) {
	setSecrets(t)
	for _, command := range []string{"check", "show"} {
		for _, format := range []string{"text", "json"} {
			got := call(t, "config", command, "--config", "testdata/shop.yaml", "-o", format)
			if got.code != exitOK || strings.Contains(got.stdout+got.stderr, secret) {
				t.Errorf("%s -o %s: exit code %d, messages %q, data\n%s", command, format, got.code, got.stderr, got.stdout)
			}
			if command == "check" && got.stderr != "testdata/shop.yaml has no faults\n" {
				t.Errorf("%s -o %s: messages %q", command, format, got.stderr)
			}
			goldentest.File(t, filepath.Join("testdata", "config", command+"."+format), got.stdout)
		}
	}
}

func TestConfigFaults(t *testing.T) {
	setSecrets(t)
	shop, err := os.ReadFile("testdata/shop.yaml")
	must(t, err)
	replaced := func(old, new string) string {
		text := strings.Replace(string(shop), old, new, 1)
		if text == string(shop) {
			t.Fatalf("testdata/shop.yaml has no %q", old)
		}
		return text
	}
	for _, tt := range []struct {
		name, text string
		faults     []string // in their order
	}{
		{"in the file", replaced("dead: [orders-dead]", "deed: [orders-dead]"), []string{
			"redrive.yaml:18:5: topics[0].deed: there is no such key: did you mean dead?",
		}},
		{"several", replaced("kind: kafka", "kind: kafak") + "colect: {}\n", []string{
			`redrive.yaml:8:11: brokers.events.kind: there is no "kafak": did you mean kafka?`,
			"redrive.yaml:29:1: colect: there is no such key: did you mean collect?",
		}},
		{"of a secret", replaced("env: KAFKA_PASSWORD", "env: KAFKA_PASSWORT"), []string{
			"redrive.yaml:12:5: brokers.events.password: the environment variable KAFKA_PASSWORT is not set: set it",
		}},
		{"of the options of an adapter", replaced("    tls: {}\n", "    message_limit: 1\n") + "  allow_plaintext: true\n", nil},
		{"of a login that others can read", replaced("amqps://rabbit-1", "amqp://rabbit-1"), []string{
			"redrive.yaml:2:3: brokers.shop: rabbitmq: entry 0 of urls would send the password to another machine where others can read it: use amqps://, or set allow_plaintext",
		}},
		{"of a topic that its broker cannot have", replaced("dead: [payments-dead]", "dead: [payments-dead, 'payments dead']"), []string{
			`redrive.yaml:23:27: topics[1].dead[1]: kafka: topology of ["payments dead"]: "payments dead" cannot be the name of a topic: use at most 249 letters, digits, dots, hyphens and underscores`,
		}},
		{"of a queue for dead letters with a long name", replaced("dead: [orders-dead]", "dead: ["+strings.Repeat("d", 250)+"]"), nil},
		{"of queues that SQS cannot have", `
brokers: {aws: {kind: sqs, region: eu-central-1}}
topics:
  - {name: orders, broker: aws, dead: [orders.dead], collect: true, receipts: order receipts}
  - {name: payments.fifo, broker: aws, dead: [payments-dead.fifo], collect: true}
store: {url: letters.db}
`, []string{
			`redrive.yaml:4:40: topics[0].dead[0]: sqs: topology of ["orders.dead"]: "orders.dead" cannot be the name of a queue: use at most 80 letters, digits, hyphens and underscores, and the ending .fifo for a FIFO queue`,
			`redrive.yaml:4:69: topics[0].receipts: sqs: topology of ["order receipts"]: "order receipts" cannot be the name of a queue: use at most 80 letters, digits, hyphens and underscores, and the ending .fifo for a FIFO queue`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			must(t, os.WriteFile(config.DefaultFile, []byte(tt.text), 0o600))
			got := call(t, "config", "check")
			if tt.faults == nil {
				if got.code != exitOK {
					t.Errorf("exit code %d, messages %q", got.code, got.stderr)
				}
				return
			}
			want := "redrive config check: the configuration has faults:\n" + strings.Join(tt.faults, "\n") + "\n"
			if got.code != exitFailure || got.stderr != want || got.stdout != "" {
				t.Errorf("exit code %d, data %q, messages\n%s\nwant\n%s", got.code, got.stdout, got.stderr, want)
			}
		})
	}
}
