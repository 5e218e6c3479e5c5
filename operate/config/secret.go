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

	place Fault
}

// Token is a secret that callers show. It has 16 characters or more.
type Token struct{ Secret }

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
	place Fault
}

const (
	maxSecret  = 64 << 10 // bytes
	leastToken = 16       // bytes
	leastKey   = 32       // bytes
	writeRef   = "write {env: NAME} or {file: NAME}"
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
	content, err := s.read()
	if s.File != "" {
		content = bytes.TrimSuffix(bytes.TrimSuffix(content, []byte("\n")), []byte("\r"))
	}
	if err == nil && len(content) == 0 {
		err = s.place.because(s.String()+" is empty", "write the secret there", nil)
	}
	return string(content), err
}

// Read returns the token. The error is a *Fault without any of it.
func (t Token) Read() (string, error) {
	token, err := t.Secret.Read()
	if err == nil && len(token) < leastToken {
		return "", t.place.because(t.String()+" is too short", fmt.Sprintf("use %d characters or more, such as the output of `openssl rand -hex 16`", leastToken), nil)
	}
	return token, err
}

// Read returns the key. The error is a *Fault without any of it.
func (k Key) Read() ([]byte, error) {
	content, err := k.read()
	if err != nil {
		return nil, err
	}
	switch k.Encoding {
	case "hex":
		content, err = hex.DecodeString(string(bytes.TrimSpace(content)))
	case "base64":
		content, err = base64.StdEncoding.DecodeString(string(bytes.TrimSpace(content)))
	}
	if err != nil { // which quotes the bytes
		return nil, k.place.because(k.Secret.String()+" is not "+k.Encoding, "see encoding", nil)
	}
	if len(content) < leastKey {
		return nil, k.place.because(k.Secret.String()+" is too short", "use 32 random bytes, such as the output of `openssl rand 32`", nil)
	}
	return content, nil
}

// Read returns what is in the file. The error is a *Fault.
func (f File) Read() ([]byte, error) {
	content, err := read(beside(f.place.File, f.name), maxSecret)
	if err != nil {
		return nil, f.place.because(err.Error(), "", err)
	}
	return content, nil
}

// read returns the bytes in the variable or file.
func (s Secret) read() ([]byte, error) {
	if s.Env == "" {
		return File{s.File, s.place}.Read()
	}
	value, ok := os.LookupEnv(s.Env)
	if !ok {
		return nil, s.place.because("the environment variable "+s.Env+" is not set", "set it", nil)
	}
	return []byte(value), nil
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// refer takes note of where the reference is. It demands one place, and no text
// where the name of a variable belongs: it may be the secret itself.
func (s *Secret) refer(d *decoder, key string) {
	s.place = d.at(key)
	switch {
	case s.Env != "" && !variable.MatchString(s.Env):
		d.fault(key+".env", "is no name of an environment variable", "use letters, digits and _")
	case (s.Env == "") == (s.File == ""):
		d.fault(key, "names no place, or two", writeRef)
	}
}

func (f *File) refer(d *decoder, key string) { f.place = d.at(key) }
