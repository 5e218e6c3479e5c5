//go:build !unix

package sqlstore_test

import "errors"

func startPostgres() (url string, stop func(), err error) {
	return "", nil, errors.New("the tests start none on this system")
}
