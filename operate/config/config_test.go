package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/operate/internal/text"
)

// smallest is the least that is a configuration.
const smallest = `brokers:
  shop: {kind: rabbitmq, urls: [amqp://localhost]}
store: {url: letters.db}
`

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("redrive.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestFull reads a file with every key, and holds what became of it.
func TestFull(t *testing.T) {
	c, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, s := range c.Settings() {
		fmt.Fprintf(&out, "%s\t%s\t%d\n", s.Key, s.Value, s.Line)
	}
	goldentest.File(t, "testdata/full.txt", out.String())

	seen := map[string]bool{}
	for key := range c.lines {
		seen[key[strings.LastIndex(key, ".")+1:]] = true
	}
	for _, v := range []any{Config{}, Broker{}, TLS{}, Topic{}, Retry{}, Redis{}, Store{}, Collect{}, Retention{}, Serve{}, Service{}, Bodies{}, S3{}, Dead{}, Key{}} {
		for _, f := range fieldsOf(reflect.ValueOf(v)) {
			if !seen[f.key] && f.key != "directory" { // which s3 excludes
				t.Errorf("testdata/full.yaml has no key %s: add it", f.key)
			}
		}
	}
}

func TestDefaults(t *testing.T) {
	c := parse(t, smallest+"topics: [{name: orders, broker: shop, dead: [dead], retention: {confirmed: 2h}}]\nretention: {returned: 3d}\n")
	if got, want := c.Collect, (Collect{FreeDisk: 10, MaxLetters: 1_000_000}); got != want {
		t.Errorf("Collect = %+v, want %+v", got, want)
	}
	if got, want := c.Retention, (Retention{30 * day, 3 * day, 30 * day}); got != want {
		t.Errorf("Retention = %+v, want %+v", got, want)
	}
	if got, want := c.Topics[0].Retention, (Retention{2 * time.Hour, 3 * day, 30 * day}); got != want {
		t.Errorf("Retention of the topic = %+v, want %+v", got, want)
	}
	if got, want := c.Topics[0].Retry, (Retry{Attempts: 10, MaxDelay: Wait(15 * time.Minute), MaxAge: Wait(day)}); got != want {
		t.Errorf("Retry = %+v, want %+v", got, want)
	}
	if c.Serve.Listen != "127.0.0.1:7420" || c.Serve.Token != nil || c.Topics[0].Collect {
		t.Errorf("Serve = %+v, Collect = %v, want loopback and nothing collected", c.Serve, c.Topics[0].Collect)
	}
	if b := c.Brokers["shop"]; b.Prefix != "redrive" || b.Group != "" || b.Mechanism != "" {
		t.Errorf("broker %+v, want the defaults of RabbitMQ, and none of Kafka", b)
	}
}

// TestServiceAlone needs no broker and no store of letters, and works without a file.
func TestServiceAlone(t *testing.T) {
	c := parse(t, "service: {}\n")
	address, err := c.TaskStoreAddress()
	if c.Service.Listen != "127.0.0.1:7430" || c.Service.Retention != 30*day || address != "service.db" || c.BodyDirectory() != "service.db.bodies" || err != nil {
		t.Errorf("Service = %+v, store %s, bodies %s, error %v", c.Service, address, c.BodyDirectory(), err)
	}
	if address, err := c.StoreAddress(); err == nil || !strings.Contains(err.Error(), "store.url: is required") {
		t.Errorf("the store of letters is %q, error %v", address, err)
	}
	c = parse(t, `service: {store: {url: "postgres://u@localhost/db"}, tokens: {shop: [{env: SHORT_TOKEN}]}}`)
	t.Setenv("SHORT_TOKEN", "secret")
	if _, err := c.Service.Tokens["shop"][0].Read(); c.BodyDirectory() != "" || err == nil || !strings.Contains(err.Error(), "too short") {
		t.Errorf("bodies %q, error %v", c.BodyDirectory(), err)
	}
}

// TestFaults holds the faults of each file of testdata/faults against the golden
// file beside it.
func TestFaults(t *testing.T) {
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse(filepath.Base(file), content)
			if err == nil {
				t.Fatal("there is no fault")
			}
			goldentest.File(t, strings.TrimSuffix(file, "yaml")+"txt", err.Error()+"\n")
			checkFaults(t, err, content)
		})
	}
}

// checkFaults demands of an error of Parse that it is made of faults, each of
// which is one line that a terminal can show, about a line of the file.
func checkFaults(t *testing.T, err error, content []byte) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("the error is a %T, want joined ones", err)
	}
	lines := strings.Count(string(content), "\n") + 1
	for _, err := range joined.Unwrap() {
		fault, ok := errors.AsType[*Fault](err)
		if !ok && !strings.Contains(err.Error(), "more faults") {
			t.Errorf("%v is no fault", err)
		}
		if ok && (fault.Line < 0 || fault.Line > lines || fault.Line > 0 && fault.Column < 1 || fault.Problem == "") {
			t.Errorf("%v is at %d:%d of %d lines", err, fault.Line, fault.Column, lines)
		}
		if !text.IsLine(err.Error(), 4096) {
			t.Errorf("%q is no line for a terminal", err.Error())
		}
	}
}

// TestHostile gives the parser what makes parsers slow, large or silent.
func TestHostile(t *testing.T) {
	bomb := smallest + "topics: &a [x, x, x, x, x, x, x, x, x]\n"
	for _, c := range "bcdefghi" {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat("*"+string(c-1)+", ", 9), ", "))
	}
	tests := []struct{ name, text, want string }{
		{"empty", "", "redrive.yaml: there is nothing in it"},
		{"comments alone", "# nothing\n\n", "redrive.yaml: there is nothing in it"},
		{"a megabyte", strings.Repeat("x: y\n", 1<<18), "redrive.yaml: it has more than 262144 bytes"},
		{"a megabyte of one word", strings.Repeat("x", 1<<20), "more than 262144 bytes"},
		{"many keys", strings.Repeat("x: y\n", 1<<14), "redrive.yaml:10001:1: it has more than 30000 words and signs"},
		{"brackets", strings.Repeat("[", 1<<17), "redrive.yaml:1:17: the brackets are too deep"},
		{"braces", strings.Repeat("{a: ", 1<<14), "redrive.yaml:1:65: the brackets are too deep"},
		{"dashes", strings.Repeat("- ", 1<<13), "redrive.yaml: is of the type sequence"},
		{"bomb of aliases", bomb, "redrive.yaml:4:1: topics: is of the type anchor: write a list"},
		{"alias of a cycle", "topics: [*a]\n", "redrive.yaml:1:10: topics[0]: is of the type alias"},
		{"merge", "store:\n  url: x\n  <<: {url: y}\n", "redrive.yaml:3:3: store.<<: there is no such key"},
		{"tag", "store: !!binary aGk=\n", "redrive.yaml:1:1: store: is of the type tag"},
		{"tag of a text", "store: {url: !!str x}\n", "redrive.yaml:1:9: store.url: is of the type tag"},
		{"anchor of a text", "store: {url: &a x}\n", "redrive.yaml:1:9: store.url: is of the type anchor"},
		{"anchor of a key", "store: {&a url: x}\n", "store.&: there is no such key"},
		{"anchor of a secret", smallest + "serve: {token: &a {env: X}}\n", "redrive.yaml:4:9: serve.token: a secret never stands"},
		{"complex key", "? [a]\n: b\n", "redrive.yaml:2:1: this is no YAML: found an invalid key"},
		{"directive", "%YAML 1.1\n---\na: b\n", "redrive.yaml:2:1: a second document begins"},
		{"two documents", smallest + "---\n" + smallest, "redrive.yaml:4:1: a second document begins"},
		{"twice", smallest + "store: {url: b}\n", "redrive.yaml:4:1: store: is there twice, first in line 3"},
		{"twice below", "brokers:\n  a: {kind: memory}\n  a: {kind: memory}\nstore: {url: x}\n", "redrive.yaml:3:3: brokers.a: is there twice, first in line 2"},
		{"invalid UTF-8", "brokers:\n  \xff\xfe: {}\n", "redrive.yaml:2:3: the line is not UTF-8"},
		{"UTF-16", "b\x00r\x00", "redrive.yaml:1:2: there is a control character"},
		{"escape", "a: b\x1b[2J\n", "redrive.yaml:1:5: there is a control character"},
		{"escape that YAML spells", smallest + "topics: [{name: \"a\\e[2J\", broker: shop, dead: [d]}]\n", "redrive.yaml:4:11: topics[0].name: is too long, or has characters that cannot be seen"},
		{"tab", "store:\n\turl: x\n", "redrive.yaml:2:1: a tab indents the line: use spaces"},
		{"tab after spaces", "store:\n  \turl: x\n", "redrive.yaml:2:1: a tab indents the line: use spaces"},
		{"no value", "store:\n", "redrive.yaml:1:1: store: has no value"},
		{"null", smallest + "serve: {token: null}\n", "redrive.yaml:4:9: serve.token: a secret never stands in this file"},
		{"list of nothing", "brokers: {}\n", "redrive.yaml:1:1: brokers: is empty"},
		{"a word", "redrive\n", "redrive.yaml: is of the type string"},
		{"no space", "store:x\nbrokers: y\n", "redrive.yaml:1:1: this is no YAML"},
		{"open quote", "store: {url: \"x}\n", "redrive.yaml:1:14: this is no YAML: could not find end character of double-quoted text"},
		{"wrong indent", "store:\n  url: x\n password: y\n", "redrive.yaml:3:2: this is no YAML"},
		{"value for a mapping", "brokers: 17\n", "redrive.yaml:1:1: brokers: is of the type int: write keys and values below it"},
		{"mapping for a value", "store: {url: {a: b}}\n", "store.url: is of the type mapping: write a single value"},
		{"list for a value", "store: {url: [a]}\n", "store.url: is of the type sequence: write a single value"},
		{"number for a text", "store: {url: 1}\n", "store.url: is of the type int: put it into quotes"},
		{"text for a switch", smallest + "topics: [{name: a, broker: shop, dead: [d], collect: yes}]\n", "topics[0].collect: is no yes or no: use true or false"},
		{"text for a number", smallest + "collect: {max_letters: all}\n", "collect.max_letters: is no number"},
		{"huge number", smallest + "collect: {max_letters: 99999999999999999999}\n", "collect.max_letters: is no number"},
		{"no share", smallest + "collect: {free_disk: 0%}\n", "collect.free_disk: is no share: use one from 1% to 90%"},
		{"endless time", smallest + "retention: {discarded: 99999d}\n", "retention.discarded: is no time"},
		{"no name", "brokers: {a.b: {kind: memory}}\nstore: {url: x}\n", "brokers.a.b: is no name"},
		{"long name", "brokers: {" + strings.Repeat("a", 65) + ": {kind: memory}}\nstore: {url: x}\n", "is no name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("redrive.yaml", []byte(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			checkFaults(t, err, []byte(tt.text))
		})
	}
}

func TestAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"byte order mark":      "\ufeff" + smallest,
		"line ends of Windows": strings.ReplaceAll(smallest, "\n", "\r\n"),
		"one document":         "---\n" + smallest,
		"comment before it":    "# redrive\n---\n" + smallest,
		"JSON":                 `{"brokers": {"shop": {"kind": "rabbitmq", "urls": ["amqp://localhost"]}}, "store": {"url": "letters.db"}}`,
		"tab in a text":        smallest + "# a\tb\n",
	} {
		if c, err := Parse("redrive.yaml", []byte(text)); err != nil || c.Brokers["shop"].URLs[0] != "amqp://localhost" {
			t.Errorf("%s: %+v, error %v", name, c, err)
		}
	}
}

// TestNoSecretIsRepeated puts a secret into every place where somebody may, and
// looks for it in what Parse says.
func TestNoSecretIsRepeated(t *testing.T) {
	const secret = "hunter2!"
	for _, text := range []string{
		"brokers: {a: {kind: rabbitmq, urls: [amqp://h], user: u, password: %s}}",
		"brokers: {a: {kind: rabbitmq, urls: [amqp://h], user: u, password: {env: %s}}}",
		"brokers: {a: {kind: rabbitmq, urls: [amqp://h], user: u, password: {%s}}}",
		"brokers: {a: {kind: rabbitmq, urls: [amqp://h], user: u, password: {value: %s}}}",
		"brokers: {a: {kind: rabbitmq, urls: [amqp://h], user: u, password: [%s]}}",
		"brokers: {a: {kind: rabbitmq, urls: [amqp://h], user: u, pasword: %s}}",
		"brokers: {a: {kind: rabbitmq, urls: ['amqp://u:%s@h']}}",
		"brokers: {a: {kind: rabbitmq, urls: 'amqp://u:%s@h'}}",
		"brokers: {a: {kind: rabbitmq, urls: ['amqp://u:%s/@h']}}",
		"brokers: {a: {kind: rabbitmq, urls: ['amqp://u:x%s%%zz@h']}}",
		"brokers: {a: {kind: kafka, addresses: ['u:%s@h:9092']}}",
		"brokers: {a: {kind: kafka, addresses: ['h:9092'], secret: [%s]}}",
		"brokers: {a: {kind: kafka, addresses: ['h:9092'], secret: %s}}",
		"brokers: {a: {kind: sqs, endpoint: 'http://u:%s@h'}}",
		"brokers: {a: {kind: sqs, endpoint: 'http://h?token=%s'}}",
		"store: {url: 'postgres://u:%s@localhost/d'}",
		"store: {url: 'postgres://localhost/d?password=%s'}",
		"store: {url: 'postgres://localhost/d?pass%%77ord=%s'}",
		"store: {url: 'postgres://u@localhost:%s/d'}",
		"store: {url: 'host=localhost dbname=d password=%s'}",
		"store: {url: 'host=localhost password=%s'}",
		"store: {url: 'mysql://%s'}",
		"store: {password: %s}",
		"store: {password: \"%s}",
		"store: {password: %s: x}",
		"store:\n  password: |\n    %s\n  url: [",
		"serve: {token: %s}",
		"serve: {token: %s, token: %[1]s}",
		"serve: {listen: 'x:%s:y'}",
		"collect: {free_disk: %s, max_letters: %[1]s}",
		"retention: {confirmed: %s}",
	} {
		text = fmt.Sprintf(text, secret)
		_, err := Parse("redrive.yaml", []byte(text))
		if err == nil {
			t.Errorf("%s is accepted", text)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error repeats the secret: %v", text, err)
		}
	}
}

func TestStore(t *testing.T) {
	t.Setenv("STORE_PASSWORD", "p@ss:w/rd")
	for _, name := range []string{"PGHOST", "PGDATABASE", "PGSSLMODE", "PGSERVICE"} {
		t.Setenv(name, "") // restores it after the test
		_ = os.Unsetenv(name)
	}
	const above = "brokers: {shop: {kind: memory}}\nstore: {url: %q, %s}\n"
	for _, tt := range []struct{ url, more, address, fault string }{
		{"letters.db", "", "etc/letters.db", ""},
		{"/var/lib/letters.db", "", "/var/lib/letters.db", ""},
		{"postgres:///letters", "", "postgres:///letters", ""},
		{"postgres://redrive@localhost/letters", "", "postgres://redrive@localhost/letters", ""},
		{"postgres://redrive@127.0.0.1:5432/letters", "password: {env: STORE_PASSWORD}", "postgres://redrive@127.0.0.1:5432/letters?password=p%40ss%3Aw%2Frd", ""},
		{"postgres://redrive@db/letters?sslmode=verify-full", "", "postgres://redrive@db/letters?sslmode=verify-full", ""},
		{"postgres://redrive@db/letters", "allow_plaintext: true", "postgres://redrive@db/letters", ""},
		{"postgres://redrive@db/letters", "", "", "lets letters and password travel"},
		{"postgres://redrive@localhost/letters?service=db", "", "", "cannot be used: failed to read service"},
		{"postgres://redrive@localhost,db.example.com/letters", "", "", `travel to "db.example.com" where others can read them`},
		{"postgres://redrive@db/letters?sslmode=verify-full&sslrootcert=/of/the/server.pem", "", "postgres://redrive@db/letters?sslmode=verify-full&sslrootcert=/of/the/server.pem", ""},
		{"postgres://redrive@localhost", "", "", "names no database"},
		{"postgres://a b@h:p/d", "", "", "is no address of a database"},
		{"host=localhost user=redrive dbname=letters", "password: {env: STORE_PASSWORD}", "host=localhost user=redrive dbname=letters password='p@ss:w/rd'", ""},
		{"host=db user=redrive dbname=letters password=p@ss:w/rd", "", "", "has a password in it"},
		{":memory:", "", "", "is no store"},
		{"file:letters.db", "", "", "is no store"},
		{"sqlite:/letters.db", "", "", "is no store"},
		{"mysql://db/letters", "", "", "is no store"},
		{"letters.db", "password: {env: STORE_PASSWORD}", "", "store.password: only Postgres has one"},
	} {
		c, err := Parse("etc/redrive.yaml", fmt.Appendf(nil, above, tt.url, tt.more))
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%s: error %v, want one with %q", tt.url, err, tt.fault)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		if got, err := c.StoreAddress(); filepath.ToSlash(got) != tt.address || err != nil {
			t.Errorf("%s: address %q, error %v, want %q", tt.url, got, err, tt.address)
		}
	}
}

func TestListen(t *testing.T) {
	for listen, ok := range map[string]bool{
		"127.0.0.1:80": true, "localhost:80": true, "[::1]:80": true, "127.1.2.3:0": true,
		":80": false, "0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:80": false, "redrive.example.com:80": false,
		"localhost": false, "localhost:": false, "127.0.0.1.example.com:80": false,
	} {
		text := fmt.Sprintf("%sserve: {listen: %q}\n", smallest, listen)
		if _, err := Parse("redrive.yaml", []byte(text)); (err == nil) != ok {
			t.Errorf("listen %q without a token: error %v", listen, err)
		}
	}
	for more, ok := range map[string]bool{
		"": false, ", behind_proxy: false": false, ", behind_proxy: true": true, ", tls: {cert: a.pem, key: b.pem}": true,
		", tls: {cert: a.pem}": false, ", tls: {key: b.pem}": false, ", tls: {}": false, ", behind_proxy: true, connections: 0": false,
	} {
		for _, section := range []string{"serve: {listen: '0.0.0.0:80', token: {env: TOKEN}%s}\n", "service: {listen: '0.0.0.0:80', tokens: {shop: [{env: TOKEN}]}%s}\n"} {
			text := fmt.Sprintf(smallest+section, more)
			if _, err := Parse("redrive.yaml", []byte(text)); (err == nil) != ok {
				t.Errorf("%s error %v", text, err)
			}
		}
	}
}

func TestFind(t *testing.T) {
	t.Setenv(Variable, "")
	if got := Find(""); got != DefaultFile {
		t.Errorf("Find = %q, want %q", got, DefaultFile)
	}
	t.Setenv(Variable, "of-the-environment.yaml")
	if got := Find(""); got != "of-the-environment.yaml" {
		t.Errorf("Find = %q, want the file of the environment", got)
	}
	if got := Find("named.yaml"); got != "named.yaml" {
		t.Errorf("Find = %q, want the file that was named", got)
	}
}

func TestLoad(t *testing.T) {
	folder := t.TempDir()
	if _, err := Load(filepath.Join(folder, "none.yaml")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--config or REDRIVE_CONFIG") {
		t.Errorf("no file: %v", err)
	}
	if _, err := Load(folder); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a folder: %v", err)
	}
	large := filepath.Join(folder, "large.yaml")
	if err := os.WriteFile(large, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(large); err == nil || !strings.Contains(err.Error(), "more than 262144 bytes") {
		t.Errorf("a large file: %v", err)
	}
}

func TestFault(t *testing.T) {
	c := parse(t, smallest)
	cause := errors.New("it is closed")
	fault := c.Fault("brokers.shop", cause)
	if got, want := fault.Error(), "redrive.yaml:2:3: brokers.shop: it is closed"; got != want || !errors.Is(fault, cause) {
		t.Errorf("fault %q, want %q", got, want)
	}
}

// FuzzParse demands that any text gives a configuration or faults of it, that a
// configuration can be shown, and that brackets cost no minutes.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	faults, _ := filepath.Glob("testdata/faults/*.yaml")
	for _, file := range slices.Concat(files, faults) {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(smallest))
	f.Fuzz(func(t *testing.T, content []byte) {
		c, err := Parse("redrive.yaml", content)
		if err != nil {
			checkFaults(t, err, content)
			return
		}
		for _, s := range c.Settings() {
			if s.Key == "" || s.Value == "" || !text.IsLine(s.Value, 1<<20) || carriesPassword(s.Value) {
				t.Errorf("setting %+v", s)
			}
		}
		if len(c.Brokers) == 0 || c.Store.URL == "" || c.Collect.MaxLetters == 0 || c.Retention.Discarded == 0 {
			t.Errorf("%+v is no configuration", c)
		}
	})
}
