module github.com/redrive-go/redrive/operate

go 1.26.0

require (
	github.com/goccy/go-yaml v1.19.2
	github.com/redrive-go/redrive v0.0.0-00010101000000-000000000000
	github.com/rivo/uniseg v0.4.7
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.9
	golang.org/x/term v0.48.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

// Until the first release, which ends it: go install refuses a module with one.
replace github.com/redrive-go/redrive => ../
