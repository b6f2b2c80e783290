package server

import (
	"context"
	"time"
)

const (
	// How long a row is run after the client has gone, unless a single row takes longer.
	cancelPatience = 5 * time.Millisecond
	// Rows that pass at most between two looks at the client.
	rowsBetweenChecks = 256
)

// pace looks now and then whether the client has gone: looking takes longer than a short row.
type pace struct {
	ctx    context.Context
	looked time.Time
	due    int
	step   int
}

func newPace(ctx context.Context) *pace { return &pace{ctx: ctx, looked: time.Now()} }

// check is called before each row, which count from 0; an error ends the batch.
func (p *pace) check(row int) error {
	if row < p.due {
		return nil
	}
	if err := p.ctx.Err(); err != nil {
		return err
	}
	now := time.Now()
	if elapsed := now.Sub(p.looked); elapsed < cancelPatience {
		p.step = min(2*p.step+1, rowsBetweenChecks)
	} else {
		p.step = max(p.step/2, 1)
	}
	p.looked, p.due = now, row+p.step
	return nil
}
