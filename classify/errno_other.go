//go:build !windows

package classify

// systemErrnos is what one system has beyond commonErrnos.
var systemErrnos []errnoRow
