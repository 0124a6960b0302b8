package ras

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// MostRanks is the largest gang that is asked.
	MostRanks = 2048
	// mostAnswer is the most bytes of an answer: 2,048 ranks in ten communicators take 12 MB.
	mostAnswer = 16 << 20
	// greetingTime is how long a listener has to answer the greeting, and attempts how many are tried: the kernel chooses one of those that
	// the pod's processes have on the port, and a process that is stopped does not answer.
	greetingTime = 250 * time.Millisecond
	attempts     = 3
	// timeoutSeconds is how long NCCL waits for processes whose connections are slow.
	timeoutSeconds = 1
)

// DefaultAddress is where NCCL's RAS listens if EnvAddress is not set.
const (
	DefaultAddress = "localhost:28028"
	EnvAddress     = "NCCL_RAS_ADDR"
)

// Ask asks for the faults of a gang of that many ranks, ascending by rank. Its rank 0 is that process.
func Ask(ctx context.Context, address string, world int, own Own) ([]protocol.RankFault, error) {
	if world < 1 || world > MostRanks {
		return nil, fmt.Errorf("asking NCCL's RAS about %d ranks: it is asked about 1 to %d", world, MostRanks)
	}
	var errs []error
	for range attempts {
		c, err := greet(ctx, address)
		if err == nil {
			defer c.conn.Close()
			return c.status(world, own)
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("asking NCCL's RAS at %s: %w", address, errors.Join(errs...))
}

// client is a connection to a RAS thread.
type client struct {
	conn net.Conn
	from *bufio.Reader
}

// greet opens a connection to a listener that answers.
func greet(ctx context.Context, address string) (*client, error) {
	conn, err := (&net.Dialer{Timeout: greetingTime}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, from: bufio.NewReaderSize(io.LimitReader(conn, mostAnswer), 64<<10)}
	end, limited := ctx.Deadline()
	soon := time.Now().Add(greetingTime)
	if limited && end.Before(soon) {
		soon = end
	}
	if err = conn.SetDeadline(soon); err == nil {
		err = c.command("CLIENT PROTOCOL 2", "SERVER PROTOCOL ")
	}
	if err == nil {
		err = conn.SetDeadline(end) // the zero time: none
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// status asks for the state of all communicators.
func (c *client) status(world int, own Own) ([]protocol.RankFault, error) {
	for _, command := range []string{"SET FORMAT json", fmt.Sprintf("TIMEOUT %d", timeoutSeconds)} {
		if err := c.command(command, "OK"); err != nil {
			return nil, err
		}
	}
	if _, err := io.WriteString(c.conn, "VERBOSE STATUS\n"); err != nil {
		return nil, err
	}
	return read(c.from, world, own)
}

// command sends a command whose answer must begin with that.
func (c *client) command(command, answer string) error {
	if _, err := io.WriteString(c.conn, command+"\n"); err != nil {
		return err
	}
	line, err := c.from.ReadSlice('\n') // an error if it does not fit into the buffer
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte(answer)) {
		return fmt.Errorf("%s was answered by %.40q", command, line)
	}
	return nil
}
