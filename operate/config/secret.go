package config

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Secret says where a secret is: in an environment variable or in a file. It does
// not hold it, so it can be printed.
type Secret struct {
	// Env is the name of an environment variable.
	Env string `yaml:"env" unset:"see file"`

	// File is the name of a file. A line feed at its end is not part of a secret.
	File string `yaml:"file" unset:"see env"`

	owner origin
	least int // bytes
}

// Key says where a key of 32 random bytes or more is, and how it is written.
type Key struct {
	Secret

	// Encoding is `raw`, the bytes as they are, a line feed at the end among
	// them, or `hex` or `base64`.
	Encoding string `yaml:"encoding" default:"raw" one:"raw hex base64"`
}

// File is the name of a file.
type File struct {
	name  string
	owner origin
}

// origin is where something stands in a configuration.
type origin struct {
	file, key string
	at        place
}

func (o origin) fault(problem, fix string, cause error) error {
	return &Fault{File: o.file, Line: o.at.line, Column: o.at.column, Key: o.key, Problem: problem, Fix: fix, cause: cause}
}

const (
	maxSecret = 64 << 10 // bytes
	leastKey  = 32       // bytes
	writeRef  = "write {env: NAME} or {file: NAME}"
)

// String says where the secret is.
func (s Secret) String() string {
	if s.Env != "" {
		return "the environment variable " + s.Env
	}
	return "the file " + s.File
}

// String says where the key is, and how it is written.
func (k Key) String() string { return strings.TrimSuffix(k.Secret.String()+", "+k.Encoding, ", raw") }

// String is the name of the file.
func (f File) String() string { return f.name }

// UnmarshalText takes the name of a file.
func (f *File) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return form("name of a file: write one, or remove the key")
	}
	f.name = string(text)
	return nil
}

// Read returns the secret. The error is a *Fault without any of it.
func (s Secret) Read() (string, error) {
	text, err := s.owner.read(s.Env, s.File)
	if err != nil {
		return "", err
	}
	if s.File != "" {
		text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	}
	switch {
	case len(text) == 0:
		return "", s.owner.fault(s.String()+" is empty", "write the secret there", nil)
	case len(text) < s.least:
		return "", s.owner.fault(s.String()+" is too short", fmt.Sprintf("use %d characters or more, such as the output of `openssl rand -hex 16`", s.least), nil)
	}
	return string(text), nil
}

// Read returns the key. The error is a *Fault without any of it.
func (k Key) Read() ([]byte, error) {
	text, err := k.owner.read(k.Env, k.File)
	if err != nil {
		return nil, err
	}
	switch k.Encoding {
	case "hex":
		text, err = hex.DecodeString(string(bytes.TrimSpace(text)))
	case "base64":
		text, err = base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
	}
	if err != nil { // which quotes the bytes
		return nil, k.owner.fault(k.Secret.String()+" is not "+k.Encoding, "see encoding", nil)
	}
	if len(text) < leastKey {
		return nil, k.owner.fault(k.Secret.String()+" is too short", "use 32 random bytes, such as the output of `openssl rand 32`", nil)
	}
	return text, nil
}

// Read returns what is in the file. The error is a *Fault.
func (f File) Read() ([]byte, error) { return f.owner.read("", f.name) }

func (o origin) read(env, file string) ([]byte, error) {
	if env != "" {
		value, ok := os.LookupEnv(env)
		if !ok {
			return nil, o.fault("the environment variable "+env+" is not set", "set it", nil)
		}
		return []byte(value), nil
	}
	text, err := read(beside(o.file, file), maxSecret)
	if err != nil {
		return nil, o.fault(err.Error(), "", err)
	}
	return text, nil
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// stands takes note of where the reference is. It demands one place, and no text
// where the name of a variable belongs: it may be the secret itself.
func (s *Secret) stands(d *decoder, o origin) {
	s.owner = o
	switch {
	case s.Env != "" && !variable.MatchString(s.Env):
		d.wrong(o.key+".env", "is no name of an environment variable", "use letters, digits and _")
	case (s.Env == "") == (s.File == ""):
		d.wrong(o.key, "names no place, or two", writeRef)
	}
}

func (f *File) stands(_ *decoder, o origin) { f.owner = o }
