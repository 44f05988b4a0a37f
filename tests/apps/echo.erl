%% SPDX-License-Identifier: BSD-2-Clause
%% escript echo.erl server | client PORT: connections of many processes, active and passive, framed and not.
-mode(compile).

main(["server"]) ->
    {ok, L} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {packet, 4}, {active, false}, {backlog, 64},
                                 {reuseaddr, true}, {nodelay, true}]),
    {ok, Port} = inet:port(L),
    io:format("~b~n", [Port]),
    accept(L, 0);
main(["client", Port]) ->
    Me = self(),
    Pids = [spawn_link(fun() -> client(Me, list_to_integer(Port), I) end) || I <- lists:seq(1, 16)],
    [receive {P, warm} -> ok end || P <- Pids],
    io:format("warm~n"),
    io:get_line(""),
    [P ! go || P <- Pids],
    [receive {P, done} -> ok end || P <- Pids],
    io:format("ok~n").

accept(L, N) ->
    {ok, S} = gen_tcp:accept(L),
    P = spawn(fun() -> receive go -> serve(S, N rem 3) end end),
    ok = gen_tcp:controlling_process(S, P),
    P ! go,
    accept(L, N + 1).

%% three ways to be told of what comes
serve(S, 0) ->
    case gen_tcp:recv(S, 0) of
        {ok, B} -> ok = gen_tcp:send(S, B), serve(S, 0);
        {error, closed} -> ok
    end;
serve(S, 1) ->
    ok = inet:setopts(S, [{active, once}]),
    receive
        {tcp, S, B} -> ok = gen_tcp:send(S, B), serve(S, 1);
        {tcp_closed, S} -> ok
    end;
serve(S, 2) ->
    ok = inet:setopts(S, [{active, true}]),
    serve(S, 3);
serve(S, 3) ->
    receive
        {tcp, S, B} -> ok = gen_tcp:send(S, B), serve(S, 3);
        {tcp_closed, S} -> ok
    end.

client(Me, Port, I) ->
    {ok, S} = gen_tcp:connect(os:getenv("TEST_ADDRESS", "127.0.0.1"), Port, [binary, {packet, 4}, {active, I rem 2 =:= 0}, {nodelay, true}]),
    turns(S, I, 60),
    Me ! {self(), warm},
    wait(S, I),
    turns(S, I, 200),
    [turn(S, I rem 2, bytes(I, K, 300000 * K)) || K <- lists:seq(1, 3)],
    ok = gen_tcp:shutdown(S, write),
    closed(S, I rem 2),
    Me ! {self(), done}.

%% A connection whose hand-shake took too long on a loaded machine tries again when it is used.
wait(S, I) -> receive go -> ok after 50 -> turns(S, I, 1), wait(S, I) end.

turns(_, _, 0) -> ok;
turns(S, I, N) ->
    turn(S, I rem 2, bytes(I, N, 1 + (N * 7919) rem 3000)),
    turns(S, I, N - 1).

turn(S, How, B) ->
    ok = gen_tcp:send(S, [<<"head">>, B]),
    <<"head", B/binary>> = next(S, How).

next(S, 1) -> {ok, B} = gen_tcp:recv(S, 0, 20000), B;
next(S, 0) -> receive {tcp, S, B} -> B after 20000 -> exit(nothing) end.

closed(S, 1) -> {error, closed} = gen_tcp:recv(S, 0, 20000);
closed(S, 0) -> receive {tcp_closed, S} -> ok after 20000 -> exit(no_end) end.

%% bytes that repeat nowhere
bytes(I, K, N) ->
    {B, _} = rand:bytes_s(N, rand:seed_s(exsss, {I, K, N})),
    B.
