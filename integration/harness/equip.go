package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// What tests need of the machine besides brokers.
const (
	Postgres     Product = "postgres"     // its programs: tests start servers of their own
	RedisServer  Product = "redis-server" // likewise, wherever the Redis of all tests runs
	RaceDetector Product = "race"         // a C compiler, which links the detector
	Python       Product = "python"       // an example is in it
	Promtool     Product = "promtool"     // plays the alerts through
)

// tool is a program that brokers or tests need.
type tool struct {
	program  string
	packages string // of Debian and Ubuntu
	products []Product
}

// tools returns the table of the programs that come from packages. RabbitMQ,
// Redis and Valkey run from the machine's own package where its release has
// their version. Elsewhere debootstrap fetches them.
func tools() []tool {
	return []tool{
		{"rabbitmq-server", "rabbitmq-server", []Product{RabbitMQ}},
		{"redis-server", "redis-server", []Product{Redis, RedisServer}},
		{"valkey-server", "valkey-server", []Product{Valkey}},
		{"debootstrap", "debootstrap debian-archive-keyring", []Product{RabbitMQ, Redis, Valkey}},
		{"java", "default-jre-headless", []Product{Kafka, SQS}},
		{"mvn", "maven", []Product{Kafka, SQS}},
		{"initdb", "postgresql", []Product{Postgres}},
		{"gcc", "gcc libc6-dev", []Product{RaceDetector}},
		{"python3", "python3", []Product{Python}},
		{"promtool", "prometheus", []Product{Promtool}},
	}
}

// system is what decides which packages are installed.
type system struct {
	docker   bool   // the brokers run in containers
	debian   bool   // Debian, Ubuntu, or what derives from them
	codename string // of the release
	root     bool
	install  string                    // REDRIVE_INSTALL
	has      func(program string) bool // is it there?
	present  func(b Broker) bool       // are the broker's own programs, here or in the cache?
}

// missing returns the tools that the brokers and the other products need and the
// machine has not.
func (s system) missing(brokers []Broker, others ...Product) []tool {
	return slices.DeleteFunc(tools(), func(t tool) bool {
		needed := slices.ContainsFunc(others, func(p Product) bool { return slices.Contains(t.products, p) }) ||
			slices.ContainsFunc(brokers, func(b Broker) bool { return slices.Contains(t.products, b.Product) && s.needs(b, t) })
		return !needed || s.has(t.program)
	})
}

// needs reports whether a broker needs a tool of its product as things are. What
// only root could use is no help to others.
func (s system) needs(b Broker, t tool) bool {
	switch t.program {
	case "java":
		return !s.docker
	case "debootstrap":
		return s.root && !s.present(b) && b.suite != s.codename
	case "rabbitmq-server":
		return s.root && !s.present(b) && b.suite == s.codename
	case "redis-server", "valkey-server":
		return !s.present(b) && b.suite == s.codename
	}
	return !s.present(b) // mvn
}

const aptInstall = "apt-get install -y --no-install-recommends "

// decide returns the packages to install, none where that is for people to do,
// and what to tell them.
func (s system) decide(missing []tool) (packages []string, say string) {
	if len(missing) == 0 {
		return nil, ""
	}
	var programs []string
	for _, t := range missing {
		programs = append(programs, t.program)
		packages = append(packages, strings.Fields(t.packages)...)
	}
	lack, command := "missing "+strings.Join(programs, ", "), aptInstall+strings.Join(packages, " ")
	switch {
	case !s.debian:
		return nil, lack + ": install what has them, or for the brokers start a Docker engine with compose"
	case s.install != "" && s.install != "yes":
		return nil, lack + ", and REDRIVE_INSTALL=" + s.install + ": " + command
	case !s.root:
		return nil, lack + ": sudo " + command
	}
	return packages, lack + ", so now: " + command + " (REDRIVE_INSTALL=no forbids it)"
}

// Equip sees to it that the machine has what the brokers, and the others besides,
// are made of. As root on Debian or Ubuntu it installs what is missing, and says
// so first; elsewhere it says what to do. An error is not the end: what can run
// does, and the start of the others says why they cannot.
func (h *Harness) Equip(ctx context.Context, brokers []Broker, others ...Product) error {
	return h.locked(func() error {
		s := h.system(ctx)
		packages, say := s.decide(s.missing(brokers, others...))
		if say != "" {
			fmt.Fprintln(h.log, "brokers:", say)
		}
		if len(packages) == 0 {
			return nil
		}
		return withoutServices(policyFile, func() error { return install(ctx, packages) })
	})
}

func (h *Harness) system(ctx context.Context) system {
	release, _ := os.ReadFile("/etc/os-release")
	s := osRelease(string(release))
	_, s.docker = h.engine.(*compose)
	s.root, s.install, s.has = os.Getuid() == 0, os.Getenv("REDRIVE_INSTALL"), has
	s.present = func(b Broker) bool { return h.engine.present(ctx, b) }
	return s
}

// osRelease reads os-release(5).
func osRelease(text string) (s system) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID", "ID_LIKE":
			ids := strings.Fields(value)
			s.debian = s.debian || slices.Contains(ids, "debian") || slices.Contains(ids, "ubuntu")
		case "VERSION_CODENAME":
			s.codename = value
		}
	}
	return s
}

// has looks for a program where the tests that need it do.
func has(program string) bool {
	switch program {
	case "initdb":
		return Initdb() != ""
	case "gcc":
		program = cmp.Or(os.Getenv("CC"), program)
		if runtime.GOOS == "darwin" {
			return true // whose detector needs none
		}
	case "debootstrap":
		if _, err := os.Stat("/usr/share/keyrings/debian-archive-keyring.gpg"); err != nil {
			return false
		}
	}
	_, err := exec.LookPath(program)
	return err == nil
}

// Initdb returns the path of Postgres's program, in the path or where Debian
// keeps it, or "".
func Initdb() string {
	if found, err := exec.LookPath("initdb"); err == nil {
		return found
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	return slices.Max(append(found, ""))
}

// Lacks returns an error if the machine lacks a program that tests of the
// product need. The error names the program and its packages.
func Lacks(p Product) error {
	for _, t := range tools() {
		if slices.Contains(t.products, p) && !has(t.program) {
			return errors.New(remedy(t.program))
		}
	}
	return nil
}

// remedy says how to get a program of the table.
func remedy(program string) string {
	return "no " + program + ": apt-get install " + packagesOf(program)
}

func packagesOf(program string) string {
	all := tools()
	return all[slices.IndexFunc(all, func(t tool) bool { return t.program == program })].packages
}

// errLacks is the error of a broker that lacks a program of the table.
func errLacks(program string) error {
	return errors.New(remedy(program) + ", or start a Docker engine with compose")
}

func install(ctx context.Context, packages []string) error {
	for _, args := range [][]string{{"update"}, append(strings.Fields(aptInstall)[1:], packages...)} {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // never kill it at work
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, lastLines(out.Bytes()))
		}
	}
	return nil
}

const (
	policyFile = "/usr/sbin/policy-rc.d"
	policy     = "#!/bin/sh\n# redrive installs packages, and their services are not to start. Remove this if it stays.\nexit 101\n"
)

// withoutServices installs packages whose services do not start: the brokers of
// the tests run at addresses of their own. Where the machine has a policy, that
// one decides.
func withoutServices(file string, install func() error) error {
	if own, err := os.ReadFile(file); err == nil && string(own) != policy {
		return install()
	}
	if err := os.WriteFile(file, []byte(policy), 0o755); err != nil {
		return err
	}
	return errors.Join(install(), os.Remove(file))
}

// Describe returns what answers at the address that the tests are given, such as
// "Kafka 4.3", or the name and the address of a broker that is not understood.
func Describe(ctx context.Context, b Broker) string {
	address := cmp.Or(os.Getenv(b.Env), b.URL())
	greeting, err := Probe(ctx, b.Product, address)
	if err == nil {
		return greeting.Product + " " + greeting.Version
	}
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		address = u.Host // without the password
	}
	return b.Name + " at " + address
}

// DescribePostgres returns the name and version of the Postgres that the tests
// start, or an error that says what to install.
func DescribePostgres(ctx context.Context) (string, error) {
	if os.Getenv("REDRIVE_POSTGRES_URL") != "" {
		return "PostgreSQL at REDRIVE_POSTGRES_URL", nil
	}
	program := Initdb()
	if program == "" {
		return "", errors.New(remedy("initdb"))
	}
	out, err := exec.CommandContext(ctx, program, "--version").Output() // initdb (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)
	if words := strings.Fields(string(out)); err == nil && len(words) > 2 {
		return "PostgreSQL " + words[2], nil
	}
	return "PostgreSQL", err
}

// NoRaceDetector returns an error that tells why Go cannot build tests with the
// race detector here, or nil if it can. The Makefile asks Go the same.
func NoRaceDetector(ctx context.Context) error {
	enabled, err := exec.CommandContext(ctx, "go", "env", "CGO_ENABLED").Output()
	switch {
	case err != nil:
		return fmt.Errorf("go env CGO_ENABLED: %w", err)
	case strings.TrimSpace(string(enabled)) == "1":
		return nil
	case os.Getenv("CGO_ENABLED") == "0":
		return errors.New("CGO_ENABLED=0")
	}
	return errors.New("no C compiler: apt-get install " + packagesOf("gcc"))
}

func lastLines(text []byte) string {
	const most = 15
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
