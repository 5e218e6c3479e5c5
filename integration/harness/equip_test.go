package harness

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMissing: what is missing, by what the machine has.
func TestMissing(t *testing.T) {
	everything := []string{"rabbitmq", "kafka", "sqs", "redis"}
	suite := []Product{Postgres, RedisServer, RaceDetector, Python, Promtool}
	for _, tt := range []struct {
		name    string
		system  system
		has     []string // programs on the machine
		present []string // brokers whose own programs are there
		brokers []string
		others  []Product
		want    []string
	}{
		{name: "a fresh Debian 12 that has two of the brokers", system: system{debian: true, codename: "bookworm", root: true}, brokers: everything, others: suite,
			want: []string{"rabbitmq-server", "redis-server", "debootstrap", "java", "mvn", "initdb", "gcc", "python3", "promtool"}},
		{name: "a fresh Ubuntu, which has none of them", system: system{debian: true, codename: "noble", root: true}, brokers: everything,
			want: []string{"debootstrap", "java", "mvn"}},
		{name: "not root on Debian 12", system: system{debian: true, codename: "bookworm"}, brokers: everything,
			want: []string{"redis-server", "java", "mvn"}},
		{name: "a fresh Debian 13, which has Valkey 8.1 and no Redis 7.0", system: system{debian: true, codename: "trixie", root: true}, brokers: []string{"redis", "valkey"},
			want: []string{"valkey-server", "debootstrap"}},
		{name: "all in the cache", system: system{codename: "bookworm", root: true}, brokers: everything,
			present: []string{"rabbitmq3", "rabbitmq4", "kafka43", "kafka39", "elasticmq", "redis7"}, want: []string{"java"}},
		{name: "one Kafka in the cache", system: system{root: true}, has: []string{"java"}, present: []string{"kafka43"}, brokers: []string{"kafka"},
			want: []string{"mvn"}},
		{name: "all there", system: system{codename: "bookworm", root: true}, brokers: everything, others: suite,
			has: []string{"rabbitmq-server", "redis-server", "debootstrap", "java", "mvn", "initdb", "gcc", "python3", "promtool"}},
		{name: "containers", system: system{docker: true, codename: "bookworm", root: true}, brokers: everything, others: suite,
			present: []string{"rabbitmq3", "rabbitmq4", "kafka43", "kafka39", "elasticmq", "redis7"}, want: []string{"redis-server", "initdb", "gcc", "python3", "promtool"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			brokers, err := Select(tt.brokers...)
			must(t, err)
			tt.system.has = func(program string) bool { return slices.Contains(tt.has, program) }
			tt.system.present = func(b Broker) bool { return slices.Contains(tt.present, b.Name) }
			var got []string
			for _, lacking := range tt.system.missing(brokers, tt.others...) {
				got = append(got, lacking.program)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("missing %q, want %q", got, tt.want)
			}
		})
	}
}

// TestDecide: what is done about it, and said.
func TestDecide(t *testing.T) {
	lacking := []tool{{program: "java", packages: "default-jre-headless"}, {program: "gcc", packages: "gcc libc6-dev"}}
	const command = "apt-get install -y --no-install-recommends default-jre-headless gcc libc6-dev"
	for _, tt := range []struct {
		name    string
		system  system
		missing []tool
		install bool
		want    string // how the line ends
	}{
		{name: "nothing", system: system{debian: true, root: true}},
		{name: "root on Debian", system: system{debian: true, root: true}, missing: lacking, install: true, want: "so now: " + command + " (REDRIVE_INSTALL=no forbids it)"},
		{name: "forbidden", system: system{debian: true, root: true, install: "no"}, missing: lacking, want: "and REDRIVE_INSTALL=no: " + command},
		{name: "a word that may mean no", system: system{debian: true, root: true, install: "0"}, missing: lacking, want: "and REDRIVE_INSTALL=0: " + command},
		{name: "a user", system: system{debian: true}, missing: lacking, want: "missing java, gcc: sudo " + command},
		{name: "another system", system: system{root: true}, missing: lacking, want: "start a Docker engine with compose"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			packages, say := tt.system.decide(tt.missing)
			if !strings.HasSuffix(say, tt.want) || (say == "") != (tt.want == "") {
				t.Errorf("said %q, want %q", say, tt.want)
			}
			want := []string(nil)
			if tt.install {
				want = []string{"default-jre-headless", "gcc", "libc6-dev"}
			}
			if !slices.Equal(packages, want) {
				t.Errorf("installs %q, want %q", packages, want)
			}
		})
	}
}

func TestOSRelease(t *testing.T) {
	for _, tt := range []struct {
		text     string
		debian   bool
		codename string
	}{
		{"NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n", true, "bookworm"},
		{"ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble\n", true, "noble"},
		{"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\nVERSION_CODENAME=wilma", true, "wilma"},
		{"ID=fedora\nVERSION_CODENAME=\"\"\n", false, ""},
	} {
		if got := osRelease(tt.text); got.debian != tt.debian || got.codename != tt.codename {
			t.Errorf("%q: debian %v, codename %q", tt.text, got.debian, got.codename)
		}
	}
}

// TestWithoutServices: the policy is gone after packages were installed or not,
// and one of the machine stays.
func TestWithoutServices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy-rc.d")
	errInstall := errors.New("no such package")
	read := func() string {
		text, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, tt := range []struct{ name, before, during, after string }{
		{"none", "", policy, ""},
		{"one of the machine", "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 0\n"},
		{"one that an interrupted install left", policy, policy, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.before != "" {
				must(t, os.WriteFile(file, []byte(tt.before), 0o755))
			}
			err := withoutServices(file, func() error {
				if got := read(); got != tt.during {
					t.Errorf("policy %q while packages are installed, want %q", got, tt.during)
				}
				return errInstall
			})
			if !errors.Is(err, errInstall) {
				t.Errorf("withoutServices = %v, want %v", err, errInstall)
			}
			if got := read(); got != tt.after {
				t.Errorf("policy %q afterwards, want %q", got, tt.after)
			}
		})
	}
}
