package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// OwnDevice returns the environment in which a local rank sees only its own device, as with torchrun's --virtual-local-rank; env is the
// launcher's.
func (s Spec) OwnDevice(env map[string]string, local int) (map[string]string, error) {
	name := "CUDA_VISIBLE_DEVICES"
	if env["HIP_VISIBLE_DEVICES"] != "" { // it overrides the other one
		name = "HIP_VISIBLE_DEVICES"
	}
	device := strconv.Itoa(local)
	if visible, ok := env[name]; ok {
		all := strings.Split(visible, ",")
		if local >= len(all) {
			return nil, refuse("--virtual-local-rank", fmt.Sprintf("local rank %d has no device in %s=%s", local, name, visible), "start as many ranks as there are devices")
		}
		device = strings.TrimSpace(all[local])
	}
	return map[string]string{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device, name: device}, nil
}
