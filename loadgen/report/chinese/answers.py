"""What a sweep, a run at one rate or a second judgement answers, sentence by sentence."""

ANSWERS: dict[str, str] = {
    # where and why it ended
    "at {n} concurrent request(s)": "并发 {n} 时",
    "at {n} requests/s": "{n} 请求/秒时",
    "Output throughput stopped growing.": "输出吞吐量不再增长。",
    "Output throughput stopped growing: from {a} to {b} concurrent request(s) it changed by {x} % per doubling, at most"
    " {y} %, which is below {z} %.": (
        "输出吞吐量不再增长：并发从 {a} 到 {b}，每翻一倍变化 {x} %，至多 {y} %，低于 {z} %。"
    ),
    "Output throughput fell twice in a row, up to {n} concurrent request(s): the server is past its best load.": (
        "输出吞吐量连续两次下降，直至并发 {n}：服务器已超过其最佳负载。"
    ),
    "Every level asked for was measured.": "所要求的负载均已测量。",
    "No limit up to {n} concurrent request(s), the highest level allowed; --max-level raises it.": (
        "直至允许的最高并发 {n} 未见上限；可用 --max-level 提高。"
    ),
    "No limit up to {n} requests/s, the highest rate allowed.": "直至允许的最高速率 {n} 请求/秒未见上限。",
    "The server refused access {where:said}.": "{where}服务器拒绝访问。",
    "Too many requests failed {where:said}: {how}.": "{where}失败的请求过多：{how}。",
    "The server's admission limit: it answers about {n} request(s) at once and refuses more ({where:said}, {how}).": (
        "服务器的准入限制：同时约应答 {n} 个请求，超出的拒绝（{where}，{how}）。"
    ),
    "This client was the limit {where:said}, so that level says nothing of the server.": (
        "{where}客户端是瓶颈，该负载不说明服务器的情况。"
    ),
    "This client was the limit {where:said}, so that level says nothing of the server ({how:any}).": (
        "{where}客户端是瓶颈，该负载不说明服务器的情况（{how}）。"
    ),
    "This client could not hold the rate {where:said}, so that step says nothing of the server.": (
        "{where}客户端无法保持该速率，该步骤不说明服务器的情况。"
    ),
    "This client could not hold {n} requests/s, so the step says nothing of the server: {how:any}.": (
        "客户端无法保持 {n} 请求/秒，该步骤不说明服务器的情况：{how}。"
    ),
    "A lower rate, more --workers or a machine with nothing else to do would.": (
        "更低的速率、更多 --workers 或一台空闲的机器可以做到。"
    ),
    "The time budget was used up {where:said}.": "{where}时间预算用尽。",
    "The requests budget was used up {where:said}.": "{where}请求数预算用尽。",
    "The tokens budget was used up {where:said}.": "{where} token 预算用尽。",
    "The cost budget was used up {where:said}.": "{where}费用预算用尽。",
    "The run budget was used up {where:said}.": "{where}运行预算用尽。",
    "The run was interrupted {where:said}.": "{where}运行被中断。",
    "The sweep ended {where:said}: {why:any}.": "{where}扫描结束：{why}。",
    # levels
    "{names}, by failures": "{names}，因失败",
    "{n} concurrent request(s) hold(s) every objective.": "{n} 个并发请求满足所有目标。",
    "{n} concurrent request(s) hold(s) every objective, {m} do not.": "{n} 个并发请求满足所有目标，{m} 个不满足。",
    "{n} concurrent request(s) hold(s) every objective, {m} do not ({names:any}).": (
        "{n} 个并发请求满足所有目标，{m} 个不满足（{names}）。"
    ),
    "No level holds the objectives: {n} concurrent request(s), the lowest, already break(s) them ({names:any}).": (
        "没有负载满足目标：最低的 {n} 个并发请求已违反（{names}）。"
    ),
    "No level holds the objectives: {n} concurrent request(s), the lowest, already break(s) them ({names:any}); try"
    " {flag:said}.": "没有负载满足目标：最低的 {n} 个并发请求已违反（{names}）；可尝试{flag}。",
    "a lower --start": "更低的 --start",
    "lower --levels": "更低的 --levels",
    "a lower -c": "更低的 -c",
    "No level is proven to hold the objectives, and {n} concurrent request(s) break(s) them ({names:any}).": (
        "没有负载被证实满足目标，{n} 个并发请求违反（{names}）。"
    ),
    "No level is proven to hold or to break the objectives.": "没有负载被证实满足或违反目标。",
    "At {n} concurrent request(s) they are met to within 5 %: the limit lies there.": (
        "{n} 个并发请求时与目标相差不到 5 %：上限即在此处。"
    ),
    "The limit is most likely {n} concurrent request(s).": "上限很可能为 {n} 个并发请求。",
    "The limit is most likely {n} concurrent request(s), by the estimates there and at {m}.": (
        "依据该处与 {m} 处的估计，上限很可能为 {n} 个并发请求。"
    ),
    "Undecided: {n}; {more:said}.": "未定：{n}；{more}。",
    "longer steps would tell": "更长的步骤可以判定",
    "--resume goes on with them": "可用 --resume 继续",
    "a larger {what} budget may tell": "更大的预算（{what}）或可判定",
    "{names} stays within 5 % of its limit from {a} to {b} in flight.": (
        "并发 {a} 至 {b} 之间，{names} 与其限值相差不到 5 %。"
    ),
    "Highest output throughput: {n} tokens/s.": "最高输出吞吐量：{n} token/s。",
    "It is not known to ±{x} %, as was asked for; longer steps (--effort) may tell.": (
        "未达到所要求的 ±{x} % 精度；更长的步骤（--effort）或可达到。"
    ),
    "The server was not steady: at {n} concurrent request(s) it gave {a} tokens/s at first and {b} later, so that the"
    " intervals here are too narrow: measure it several times over.": (
        "服务器不稳定：并发 {n} 时起初为 {a} token/s，后来为 {b}，因此此处的区间偏窄：请多次测量。"
    ),
    "The server was not steady: its windows differ by more than each shows by itself; the intervals include that.": (
        "服务器不稳定：各窗口之间的差异超出各自所示；区间已包含这一点。"
    ),
    "Over {n} windows each, in turn, {what}.": "各 {n} 个窗口，轮流测量：{what}。",
    # rates
    "{n} requests/s hold.": "{n} 请求/秒可保持。",
    "{n} requests/s hold, {m} do not ({names:any}).": "{n} 请求/秒可保持，{m} 不可（{names}）。",
    "No rate is proven to hold; {n} requests/s do not ({names:any}).": (
        "没有速率被证实可保持；{n} 请求/秒不可（{names}）。"
    ),
    "A rate within 8 % of the capacity cannot be told from it.": "与容量相差 8 % 以内的速率无法与之区分。",
    "{n} requests/s were measured.": "已测量 {n} 请求/秒。",
    "{n} requests/s hold every objective.": "{n} 请求/秒满足所有目标。",
    "{n} requests/s do not hold every objective ({names:any}).": "{n} 请求/秒不满足所有目标（{names}）。",
    "{n} requests/s do not hold every objective ({names:any}); try a lower --rate.": (
        "{n} 请求/秒不满足所有目标（{names}）；可尝试更低的 --rate。"
    ),
    "At {n} requests/s the objectives are met to within 5 %: the limit lies there.": (
        "{n} 请求/秒时与目标相差不到 5 %：上限即在此处。"
    ),
    "Undecided at {n} requests/s; a longer step would tell.": "{n} 请求/秒未定；更长的步骤可以判定。",
    "Undecided at {n} requests/s ({names:any}); a longer step would tell.": (
        "{n} 请求/秒未定（{names}）；更长的步骤可以判定。"
    ),
    # judged again
    "{n} concurrent requests": "{n} 个并发请求",
    "these requests": "这些请求",
    "{load:said} hold": "{load}满足目标",
    "{load:said} hold, {n} do not ({names:any})": "{load}满足目标，{n} 不满足（{names}）",
    "{load:said} hold, and no other level measured is proven to break": (
        "{load}满足目标，且没有测得的其他负载被证实违反"
    ),
    "no measured level holds: {load:said} break {names:any}": "没有测得的负载满足目标：{load}违反 {names}",
    "undecided: no measured level is proven to hold or to break; measure longer": (
        "未定：没有测得的负载被证实满足或违反目标；请测量更久"
    ),
    "interrupted before the first step": "在第一个步骤之前被中断",
}
