// Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
//
// An environment server for PolyBeast in JavaScript. It needs only rpcenv.proto of this repository.
//
//     node server.js --address 127.0.0.1:5000 --num_envs 64
'use strict';

const path = require('node:path');
const { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js');
const { loadSync } = require('@grpc/proto-loader');

// ====================================================================== the game: put yours here
const ROWS = 10;
const COLUMNS = 5;

// A ball falls. The paddle in the lowest row moves left, stays or moves right, to catch it.
class Catch {
  static numActions = 3;
  static shape = [1, ROWS, COLUMNS]; // channels, height, width

  reset() {
    this.row = 0;
    this.column = Math.floor(Math.random() * COLUMNS);
    this.paddle = Math.floor(COLUMNS / 2);
  }

  step(action) {
    this.paddle = Math.min(COLUMNS - 1, Math.max(0, this.paddle + action - 1));
    this.row += 1;
    const terminated = this.row === ROWS - 1;
    const reward = terminated ? (this.paddle === this.column ? 1 : -1) : 0;
    return { reward, terminated, truncated: false }; // truncated: a time limit has cut the game
  }

  // Writes the observation into `pixels`, whose bytes are all 0.
  draw(pixels) {
    pixels[this.row * COLUMNS + this.column] = 255;
    pixels[(ROWS - 1) * COLUMNS + this.paddle] = 255;
  }
}

// ================================================================================ rows of any game
// Plays a game again and again. `next` plays one step and returns the fields of the row after it,
// except the observation. After the last row of an episode `next` ignores the action, resets the
// game and returns the first row of the next episode.
class Environment {
  constructor(Game) {
    this.game = new Game();
    this.ended = true;
  }

  next(action) {
    const done = this.ended; // whether the row is the first of its episode
    let outcome = { reward: 0, terminated: false, truncated: false };
    if (done) {
      this.game.reset();
      this.steps = this.score = 0;
    } else {
      outcome = this.game.step(action);
      this.steps += 1;
      this.score += outcome.reward;
    }
    this.ended = outcome.terminated || outcome.truncated;
    return {
      ...outcome,
      done,
      episode_over: this.ended, // the end of the whole game, which is one episode here
      episode_step: this.steps,
      episode_return: this.score,
    };
  }
}

const FIELDS = [
  'reward', 'done', 'terminated', 'truncated', 'episode_over', 'episode_step', 'episode_return',
];

// Returns a Step message with the next row of each environment.
function nextStep(environments, actions) {
  const began = performance.now();
  const rows = environments.map((environment, i) => environment.next(actions[i]));
  const size = Catch.shape.reduce((a, b) => a * b);
  const observations = Buffer.alloc(environments.length * size);
  environments.forEach(({ game }, i) => game.draw(observations.subarray(i * size, (i + 1) * size)));
  const message = { observations };
  for (const name of FIELDS) message[name] = rows.map((row) => row[name]);
  message.environment_seconds = (performance.now() - began) / 1000;
  return message;
}

// ====================================================================================== the server
// Serves a stream with `numEnvs` environments of its own: one Step at once, and then one for each
// Action, until the learner closes the stream. An error ends only this stream.
function serveStream(call, numEnvs) {
  const environments = Array.from({ length: numEnvs }, () => new Environment(Catch));
  const fail = (code, details) => call.emit('error', { code, details });
  const send = (actions) => {
    try {
      call.write(nextStep(environments, actions));
    } catch (error) {
      fail(grpc.status.INTERNAL, error.message);
    }
  };
  const isAction = (action) => action >= 0 && action < Catch.numActions;
  send([]);
  call.on('data', ({ actions }) => {
    if (actions.length === numEnvs && actions.every(isAction)) {
      send(actions);
    } else {
      const expected = `${numEnvs} numbers from 0 to ${Catch.numActions - 1}`;
      fail(grpc.status.INVALID_ARGUMENT, `Actions: expected ${expected}, seen ${actions}`);
    }
  });
  call.on('end', () => call.end());
}

function main() {
  const { values } = parseArgs({
    options: {
      address: { type: 'string', default: '127.0.0.1:5000' },
      num_envs: { type: 'string', default: '64' },
    },
  });
  const numEnvs = Number(values.num_envs);
  const spec = {
    protocol: 2,
    num_envs: numEnvs,
    observations: [{ name: 'frame', dtype: 'UINT8', shape: Catch.shape }],
    action_kind: 'discrete',
    action_sizes: [Catch.numActions],
    frames_per_step: 1,
    name: 'Catch', // the learner's --env
  };
  const proto = path.join(__dirname, '../../libtorchbeast/rpcenv/rpcenv.proto');
  const { rpcenv } = grpc.loadPackageDefinition(loadSync(proto, { keepCase: true }));
  const server = new grpc.Server();
  server.addService(rpcenv.RPCEnvServer.service, {
    Describe: (call, callback) => callback(null, spec),
    Stream: (call) => serveStream(call, numEnvs),
  });
  server.bindAsync(values.address, grpc.ServerCredentials.createInsecure(), (error) => {
    if (error) throw error;
    console.log(`Serving Catch, ${numEnvs} environments per stream, on ${values.address}`);
  });
}

main();
