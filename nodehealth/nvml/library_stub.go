//go:build !(cgo && linux)

package nvml

import "errors"

func open([]string) (library, error) {
	return nil, errors.New("this binary was built without cgo, so it cannot load NVIDIA's library")
}
